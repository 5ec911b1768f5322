"""pfl-research: FederatedAveraging in a SimulatedBackend, on a PyTorchModel, data in memory.

Runs in pfl-research's own environment. A round is one iteration of `FederatedAveraging.run`, with
no evaluation in it. With more than one process, clients are dealt to them as pfl-research's guide
to fast simulations has it: the environment variables PFL_WORKER_RANK and PFL_WORKER_ADDRESSES.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import os
import socket
import subprocess
import sys
from typing import Any

import numpy as np

from benchmarks import contender
from benchmarks import workloads
from tff_superquantile.engine.processes import dependent_process

# pfl and torch are not in the project's environment: only this process imports them.


def _build_module(workload: workloads.Workload) -> Any:
  """Builds the task's model, with the workload's initial weights."""
  import torch
  from torch import nn

  settings, initial = workload.settings, [torch.tensor(w) for w in workload.initial_weights]

  class Module(nn.Module):
    def loss(self, x, y, is_training=True):
      del is_training
      if settings["num_outputs"] == 1:
        return nn.functional.binary_cross_entropy_with_logits(self(x)[:, 0], y.float())
      return nn.functional.cross_entropy(self(x), y)

    def metrics(self, x, y, is_training=False):
      del x, y, is_training
      return {}  # Asked for in the first round, however rarely evaluation is wanted.

  class Linear(Module):
    def __init__(self):
      super().__init__()
      features, outputs = initial[0].shape
      self.dense = nn.Linear(features, outputs, bias=len(initial) == 2)

    def forward(self, x):
      return self.dense(x.flatten(1))

    def slots(self):
      return [(self.dense.weight, _TRANSPOSED)] + [(self.dense.bias, None)] * (len(initial) - 1)

  class ConvNet(Module):
    def __init__(self):
      super().__init__()
      self.convolutions = nn.ModuleList(
        nn.Conv2d(kernel.shape[2], kernel.shape[3], tuple(kernel.shape[:2]))
        for kernel in (initial[0], initial[2])
      )
      self.dense = nn.Linear(*initial[4].shape)

    def forward(self, x):
      x = x.unsqueeze(1)
      for convolution in self.convolutions:
        x = nn.functional.max_pool2d(nn.functional.relu(convolution(x)), 2)
      return self.dense(x.flatten(1))

    def slots(self):
      slots = []
      for convolution in self.convolutions:
        slots += [(convolution.weight, _KERNEL), (convolution.bias, None)]
      return [*slots, (self.dense.weight, _dense(initial[2], initial[4])), (self.dense.bias, None)]

  class Lstm(Module):
    """PyTorch's LSTM, whose gates come in the same order; its second bias stays zero."""

    def __init__(self):
      super().__init__()
      self.lstm = nn.LSTM(initial[0].shape[0], initial[1].shape[0], batch_first=True)
      self.lstm.bias_hh_l0.requires_grad_(False).zero_()
      self.dense = nn.Linear(*initial[3].shape)

    def forward(self, x):
      return self.dense(self.lstm(x)[0][:, -1])

    def slots(self):
      return [
        (self.lstm.weight_ih_l0, _TRANSPOSED),
        (self.lstm.weight_hh_l0, _TRANSPOSED),
        (self.lstm.bias_ih_l0, None),
        (self.dense.weight, _TRANSPOSED),
        (self.dense.bias, None),
      ]

  module = {"linear": Linear, "convnet": ConvNet, "lstm": Lstm}[settings["model"]]()
  _set_weights(module, workload.initial_weights)
  return module


def _set_weights(module: Any, weights: Sequence[np.ndarray]) -> None:
  """Copies the workload's weights to a model."""
  import torch

  with torch.no_grad():
    for (parameter, layout), values in zip(module.slots(), weights):
      values = layout[0](values) if layout else values
      parameter.copy_(torch.from_numpy(np.ascontiguousarray(values)))


_Layout = Callable[[np.ndarray], np.ndarray]
# Between the workload's layout and PyTorch's: (there, back).
_TRANSPOSED = (np.transpose, np.transpose)
_KERNEL = (lambda w: w.transpose(3, 2, 0, 1), lambda w: w.transpose(2, 3, 1, 0))


def _dense(kernel: Any, weights: Any) -> tuple[_Layout, _Layout]:
  """Returns the layouts of the weights of a dense layer on the images that a kernel makes.

  Channels are the last dimension of the workload's images, and the first of PyTorch's.
  """
  channels = kernel.shape[3]
  side = round((weights.shape[0] // channels) ** 0.5)
  return (
    lambda w: w.reshape(side, side, channels, -1).transpose(3, 2, 0, 1).reshape(w.shape[::-1]),
    lambda w: w.reshape(-1, channels, side, side).transpose(2, 3, 1, 0).reshape(w.shape[::-1]),
  )


class _PflResearch(contender.Contender):
  """FedAvg with pfl-research."""

  def __init__(self, workload: workloads.Workload, options: Mapping[str, Any]):
    self._followers = []
    if options["processes"] > 1 and "PFL_WORKER_RANK" not in os.environ:
      self._followers = _start_followers(options["processes"])

    import torch

    torch.set_num_threads(options["threads"])

    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.model.pytorch import PyTorchModel

    settings = workload.settings
    self._workload = workload
    self._clients: dict[int, tuple[Any, Any]] = {}
    self._datasets: dict[int, Any] = {}
    self._places: Iterator[int] = iter(())
    self._make_dataset = Dataset
    self._module = _build_module(workload)
    parameters = [p for p in self._module.parameters() if p.requires_grad]
    self._model = PyTorchModel(
      self._module,
      local_optimizer_create=torch.optim.SGD,
      central_optimizer=torch.optim.SGD(parameters, lr=1.0),
    )
    data = FederatedDataset(self._datasets.__getitem__, lambda: next(self._places))
    is_weighted = settings["client_weighting"] == "num_examples"
    self._backend = SimulatedBackend(
      training_data=data,
      val_data=data,
      postprocessors=[WeightByDatapoints()] if is_weighted else [],
    )
    self._algorithm = FederatedAveraging()
    self._round = 0

  def describe(self):
    import torch

    return {
      "versions": f"torch {torch.__version__}",
      "threads": torch.get_num_threads(),
      "processes": 1 + len(self._followers),
    }

  def prepare(self, round_num):
    for follower in self._followers:
      print("round", round_num, file=follower.stdin, flush=True)
    import torch

    self._datasets.clear()
    for place, client in enumerate(self._workload.cohorts[round_num]):
      if client not in self._clients:
        x, y = self._workload.client(client)
        self._clients[client] = torch.from_numpy(x), torch.from_numpy(y.astype(np.int64))
      order = torch.from_numpy(np.array(self._workload.order(round_num, place)))
      examples = tuple(values[order] for values in self._clients[client])
      self._datasets[place] = self._make_dataset(examples, user_id=str(place))
    self._places = iter(range(self._workload.num_places))

  def run_round(self, round_num):
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.hyperparam import NNTrainHyperParams

    del round_num
    self._round += 1
    self._algorithm.run(
      NNAlgorithmParams(
        central_num_iterations=self._round,  # Goes on where the last call stopped.
        evaluation_frequency=1 << 30,
        train_cohort_size=self._workload.num_places,
        val_cohort_size=None,
      ),
      self._backend,
      self._model,
      NNTrainHyperParams(
        local_batch_size=self._workload.settings["batch_size"] or None,
        local_num_epochs=1,
        local_learning_rate=self._workload.settings["client_learning_rate"],
      ),
      send_metrics_to_platform=False,
    )

  def weights(self):
    arrays = []
    for parameter, layout in self._module.slots():
      values = parameter.detach().numpy()
      arrays.append(np.array(layout[1](values) if layout else values))
    return arrays


def _start_followers(num_processes: int) -> list[subprocess.Popen]:
  """Starts the other processes, which train their part of every cohort; sets pfl's variables."""
  with socket.socket() as s:
    s.bind(("localhost", 0))
    port = s.getsockname()[1]
  # Only the first address is used.
  os.environ["PFL_WORKER_ADDRESSES"] = ",".join([f"localhost:{port}"] * num_processes)
  os.environ["PFL_WORKER_RANK"] = "0"
  module = __spec__.name
  command = [sys.executable, "-m", module, *sys.argv[1:]]
  return [
    dependent_process.DependentProcess(
      command,
      stdin=subprocess.PIPE,
      stdout=2,
      text=True,
      env={**os.environ, "PFL_WORKER_RANK": str(rank)},
    )
    for rank in range(1, num_processes)
  ]


if __name__ == "__main__":
  if "PFL_WORKER_RANK" in os.environ:
    contender.follow(_PflResearch)
  else:
    contender.serve(_PflResearch)
