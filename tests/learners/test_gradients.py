"""How the gradients of several learners become one: sums over rows, divided by the rows of all."""

import numpy.testing as npt
import torch
import torch.distributed as dist
from learner_cases import make_batch, make_learner, update, weights
from learner_peers import HOST, join_group, run_in_threads
from torch import nn

from dask_rl.learners.algorithm import OptimizerSpec
from dask_rl.learners.batch import split_batch
from dask_rl.learners.collective import RendezvousStore
from dask_rl.learners.gradients import repeatable
from dask_rl.learners.learner import Learner
from dask_rl.learners.schedules import Constant


class Recorder(Learner):
    """Keeps the gradients that the optimizers see."""

    def apply_gradients(self, keys):
        self.seen = [self.flat.segment_grad(key).clone() for key in keys]
        super().apply_gradients(keys)


class PlainStep(Recorder):
    """SGD without momentum: a step shows the gradient."""

    def configure_optimizers_for_module(self, module_id):
        self.algorithms[module_id].optimizers = lambda num_steps: {
            "default": OptimizerSpec(("",), Constant(1.0), torch.optim.SGD)
        }
        super().configure_optimizers_for_module(module_id)


class MeanLoss(nn.Module):
    """What a user of DistributedDataParallel writes: the mean of the losses of the rank's rows."""

    def __init__(self, learner):
        super().__init__()
        self.module, self.learner = learner.module["default_module"], [learner]

    def forward(self, batch):
        learner = self.learner[0]
        algorithm = learner.algorithms["default_module"]
        losses = algorithm.losses(self.module, batch, {}, algorithm.phases()[0])
        return sum(losses.values()) / len(batch["rewards"])


def both_ways(rank, rendezvous, port, settings, kind):
    """The gradients of one step: ours, and those of DistributedDataParallel."""
    share = split_batch(make_batch(kind, 16), 2)[rank]
    dist.init_process_group("gloo", init_method=f"tcp://{HOST}:{port}", rank=rank, world_size=2)
    reference = make_learner(settings, kind, learner_class=Recorder)
    ddp = nn.parallel.DistributedDataParallel(MeanLoss(reference))
    reference.flat.grad.zero_()
    ddp(share).backward()
    reference.flat.reattach()
    theirs = [reference.flat.segment_grad(key).clone() for key in sorted(reference.flat.segments)]
    del ddp
    dist.destroy_process_group()

    learner = make_learner(settings, kind, learner_class=Recorder)
    collective = join_group(rank, 2, rendezvous)
    learner.join(collective)
    update(learner, share)
    collective.close()
    return [tensor.numpy() for tensor in learner.seen], [tensor.numpy() for tensor in theirs]


def test_equal_shares_give_the_gradient_of_distributed_data_parallel(peers):
    for generation, (settings, kind) in enumerate(
        [({"name": "iql"}, "continuous"), ({"name": "iql"}, "discrete"), ({"name": "bc"}, "continuous")]
    ):
        store = RendezvousStore(HOST, generation, 20)
        free = RendezvousStore(HOST, 0, 20)  # torch's default group wants a port: one that was free a moment ago
        port = free.rendezvous.port
        del free
        answers = peers.run(both_ways, store.rendezvous, port, settings, kind)
        whole = make_learner(settings, kind, learner_class=Recorder)
        update(whole, make_batch(kind, 16))
        for ours, theirs in answers:
            assert len(ours) == len(theirs) == len(whole.seen)
            for mine, other, one_learner in zip(ours, theirs, whole.seen, strict=True):
                npt.assert_allclose(mine, other, rtol=1e-12, atol=1e-14)
                npt.assert_allclose(mine, one_learner.numpy(), rtol=1e-10, atol=1e-13)


class RowValue(PlainStep):
    """The loss of a row is its reward times every parameter: the gradient is the mean reward."""

    def compute_losses(self, module_id, batch, noise, phase):
        total = sum(p.sum() for p in self.module[module_id].parameters())
        return {"row_loss": (batch["rewards"] * total).sum()}


def test_five_rows_over_four_learners_give_the_mean_over_rows():
    batch = make_batch("discrete", 5)
    batch["rewards"] = torch.tensor([1.0, 2, 3, 4, 5], dtype=torch.float64)  # a mean of the learners' means is 3.375
    learners = [make_learner({"name": "bc"}, "discrete", learner_class=RowValue) for _ in range(4)]
    before = weights(learners[0])

    def work(collective):
        learner = learners[collective.rank]
        learner.join(collective)
        update(learner, split_batch(batch, 4)[collective.rank])
        return weights(learner)

    for after in run_in_threads(4, work):
        for name, value in after.items():
            npt.assert_allclose(before[name] - value, 3.0, rtol=1e-12)


def test_masked_rows_and_a_learner_without_any_that_count():
    batch = make_batch("discrete", 4)
    batch["rewards"] = torch.tensor([1.0, 2, 30, 40], dtype=torch.float64)
    batch["mask"] = torch.tensor([1.0, 1, 0, 0], dtype=torch.float64)
    learners = [make_learner({"name": "bc"}, "discrete", learner_class=MaskedRowValue) for _ in range(2)]
    before = weights(learners[0])

    def work(collective):
        learner = learners[collective.rank]
        learner.join(collective)
        update(learner, split_batch(batch, 2)[collective.rank])
        return weights(learner)

    for after in run_in_threads(2, work):
        for name, value in after.items():
            npt.assert_allclose(before[name] - value, 1.5, rtol=1e-12)


class MaskedRowValue(PlainStep):
    def compute_losses(self, module_id, batch, noise, phase):
        total = sum(p.sum() for p in self.module[module_id].parameters())
        return {"row_loss": (batch["rewards"] * batch["mask"] * total).sum()}


def test_convolutions_on_gpus_are_told_to_give_the_same_bits():
    before = torch.backends.cudnn.deterministic
    with repeatable("cpu"):
        assert torch.backends.cudnn.deterministic == before
    with repeatable("cuda"):
        assert torch.backends.cudnn.deterministic
    assert torch.backends.cudnn.deterministic == before
