import numpy as np
import numpy.testing as npt
import torch
from numpy_networks import forward, linear_layers, member_layers

from dask_rl.learners.networks import MLP, EnsembleLinear, EnsembleMLP


def as_numpy(module, prefix):
    return {f"{prefix}.{name}": p.detach().double().numpy() for name, p in module.named_parameters()}


def test_mlp_and_ensemble_are_those_of_numpy():
    x = torch.randn(7, 3, dtype=torch.float64)
    mlp = MLP(3, (6, 5), 2).double()
    npt.assert_allclose(
        mlp(x).detach().numpy(), forward(linear_layers(as_numpy(mlp, "m"), "m"), x.numpy())[0], rtol=1e-12
    )
    ensemble = EnsembleMLP(3, 3, (6, 5), 2).double()
    got = ensemble(x).detach().numpy()
    assert got.shape == (3, 7, 2)
    for member in range(3):
        expected, _ = forward(member_layers(as_numpy(ensemble, "m"), "m", member), x.numpy())
        npt.assert_allclose(got[member], expected, rtol=1e-12)


def test_dropout_masks_multiply_each_hidden_layer():
    mlp = MLP(3, (6, 5), 2).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    masks = [torch.randint(0, 2, (4, size)).double() * 2 for size in (6, 5)]
    expected, _ = forward(linear_layers(as_numpy(mlp, "m"), "m"), x.numpy(), [mask.numpy() for mask in masks])
    npt.assert_allclose(mlp(x, masks).detach().numpy(), expected, rtol=1e-12)
    assert torch.equal(mlp(x, [torch.zeros(4, 6), torch.zeros(4, 5)]), mlp.layers[-1].bias.expand(4, 2))


def test_members_start_apart_and_as_torch_starts_a_linear_layer():
    torch.manual_seed(0)
    layer = EnsembleLinear(2, 100, 50)
    assert not torch.equal(layer.weight[0], layer.weight[1])
    for parameter in (layer.weight, layer.bias):
        assert parameter.abs().max() <= 0.1
    reference = torch.nn.Linear(100, 50).weight
    npt.assert_allclose(layer.weight.detach().std().item(), reference.detach().std().item(), rtol=0.05)


def test_outputs_stay_in_full_precision_under_autocast():
    for network in (MLP(3, (8,), 1), EnsembleMLP(2, 3, (8,), 1)):
        with torch.no_grad():
            list(network.parameters())[-1].fill_(100.0)  # bfloat16 would round to halves here
        x = torch.randn(64, 3)
        with torch.autocast("cpu", torch.bfloat16):
            got = network(x)
        assert got.dtype == torch.float32
        npt.assert_allclose(got.detach().numpy(), network(x).detach().numpy(), atol=0.05)
        assert len(np.unique(got.detach().numpy())) > 50


def test_networks_without_hidden_layers_are_linear():
    mlp = MLP(3, (), 2)
    x = torch.randn(4, 3)
    assert torch.equal(mlp(x), mlp.layers[0](x))
