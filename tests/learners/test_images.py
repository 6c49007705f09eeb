"""Image encoders against convolutions written out in float64 numpy."""

import numpy as np
import numpy.testing as npt
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from dask_rl.learners.algorithms.registry import parse_algorithm
from dask_rl.learners.images import ImageConfig, ImageEncoder, is_image
from dask_rl.storage.errors import ConfigError

TWO_LAYERS = ImageConfig(convolutions=[(3, 3, 2), (2, 2)], num_features=4)


def convolve(x, weight, bias, stride):
    """(channels, height, width) by (outputs, channels, k, k), without padding."""
    k = weight.shape[-1]
    rows, columns = ((side - k) // stride + 1 for side in x.shape[1:])
    out = np.zeros((len(weight), rows, columns))
    for o, i, j in np.ndindex(out.shape):
        out[o, i, j] = (x[:, i * stride : i * stride + k, j * stride : j * stride + k] * weight[o]).sum() + bias[o]
    return out


def encode_in_numpy(p, image, strides):
    """Features of one image (height, width, channels) of 0 … 255."""
    x = image.transpose(2, 0, 1) / 255
    for number, stride in enumerate(strides):
        x = np.maximum(convolve(x, p[f"convolutions.{number}.weight"], p[f"convolutions.{number}.bias"], stride), 0)
    return np.maximum(p["linear.weight"] @ x.reshape(-1) + p["linear.bias"], 0)


def parameters_of(encoder):
    return {name: tensor.detach().numpy() for name, tensor in encoder.named_parameters()}


def test_features_and_gradients_are_those_of_numpy():
    torch.manual_seed(1)
    encoder = ImageEncoder("camera", (7, 9, 2), TWO_LAYERS).double()
    images = np.random.default_rng(0).integers(0, 256, (3, 7, 9, 2), np.uint8)
    weights = np.random.default_rng(1).normal(size=(3, 4))

    def loss(p):
        return sum((encode_in_numpy(p, image, (2, 1)) * w).sum() for image, w in zip(images, weights, strict=True))

    features = encoder(torch.from_numpy(images))
    p = parameters_of(encoder)
    npt.assert_allclose(features.detach().numpy(), [encode_in_numpy(p, image, (2, 1)) for image in images], rtol=1e-12)
    assert (features > 0).any()
    (features * torch.from_numpy(weights)).sum().backward()
    for name, parameter in encoder.named_parameters():
        for at in list(np.ndindex(parameter.shape))[::7]:
            moved = [
                {**p, name: p[name] + step * (at == np.indices(p[name].shape).T).all(-1).T} for step in (1e-6, -1e-6)
            ]
            expected = (loss(moved[0]) - loss(moved[1])) / 2e-6
            npt.assert_allclose(parameter.grad[at].item(), expected, rtol=1e-4, atol=1e-8, err_msg=f"{name}{at}")


def test_channels_first_and_stacks_of_frames_are_the_same_images():
    torch.manual_seed(0)
    frames = torch.randint(0, 256, (2, 4, 12, 10, 3), dtype=torch.uint8)  # (B, k, H, W, C)
    config = ImageConfig(num_features=5)
    channels_last = frames.permute(0, 2, 3, 1, 4).flatten(3)  # (B, H, W, k·C), the oldest frame first
    layouts = {
        (4, 12, 10, 3): frames,
        (4, 3, 12, 10): frames.movedim(-1, 2),
        (12, 10, 12): channels_last,
    }
    expected = None
    for shape, images in layouts.items():
        torch.manual_seed(3)
        encoder = ImageEncoder("x", shape, config)
        got = encoder(images)
        assert got.shape == (2, 5)
        expected = got if expected is None else expected
        npt.assert_allclose(got.detach(), expected.detach(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("shape", "kernels", "inputs"),
    [
        ((84, 84, 4), (8, 4, 3), 7 * 7 * 64),  # Mnih et al. 2015
        ((4, 84, 84), (8, 4, 3), 7 * 7 * 64),
        ((210, 160, 3), (8, 4, 3), 22 * 16 * 64),
        ((32, 32, 3), (4, 4), 6 * 6 * 64),
        ((16, 16, 1), (4, 3), 5 * 5 * 64),
        ((10, 10, 10), (4, 3), 2 * 2 * 64),
        ((7, 7, 3), (3,), 5 * 5 * 32),
        ((3, 3, 1), (3,), 32),
    ],
)
def test_the_default_layers_fit_the_image(shape, kernels, inputs):
    encoder = ImageEncoder("x", shape, ImageConfig())
    assert tuple(layer.kernel_size[0] for layer in encoder.convolutions) == kernels
    assert (encoder.linear.in_features, encoder.linear.out_features) == (inputs, 512)
    assert encoder(torch.zeros(2, *shape, dtype=torch.uint8)).shape == (2, 512)
    assert encoder(torch.zeros(0, *shape, dtype=torch.uint8)).shape == (0, 512)


def test_images_that_the_layers_do_not_fit():
    with pytest.raises(
        ConfigError, match=r"images of camera: got 2 × 9 pixels; allowed: at least 3 × 3 .*convolutions"
    ):
        ImageEncoder("camera", (2, 9, 1), ImageConfig())
    config = ImageConfig(convolutions=[(8, 8, 4), (8, 4, 2)])
    with pytest.raises(ConfigError, match=r"layer 2: got a kernel of 4 over 3 × 3 pixels, of the images of camera"):
        ImageEncoder("camera", (16, 16, 3), config)


def test_what_is_an_image():
    assert is_image(Box(0, 255, (84, 84, 3), np.uint8))
    assert is_image(Box(0, 255, (4, 84, 84, 3), np.uint8))
    for space in (Box(0, 255, (84, 84), np.uint8), Box(0, 1, (8, 8, 3), np.float32), Box(0, 255, (128,), np.uint8)):
        assert not is_image(space)
    assert not is_image(Discrete(3))


def test_the_settings_are_those_of_every_algorithm():
    config = parse_algorithm({"name": "bc", "images": {"convolutions": [[16, 3], [32, 3, 2]], "num_features": 64}})
    assert [layer.stride for layer in config.images.convolutions] == [1, 2]
    assert parse_algorithm(config.model_dump(mode="json")) == config
    for wrong in ({"convolutions": [[16]]}, {"convolutions": [[16, 0, 1]]}, {"num_features": 0}):
        with pytest.raises(ConfigError, match=r"algorithm\.images\."):
            parse_algorithm({"name": "bc", "images": wrong})
    with pytest.raises(
        ConfigError, match=r"algorithm\.images\.pixels: got 3; allowed: \['convolutions', 'num_features'\]"
    ):
        parse_algorithm({"name": "bc", "images": {"pixels": 3}})
