"""How TensorFlow Federated 0.87 gets into the Python of today.

TFF 0.87.0 was made for Python 3.11 and TensorFlow 2.14. Its wheel has no compiled module, and it
runs beside Python 3.13, TensorFlow 2.21 and numpy 2 once these are settled, here and nowhere else:

  * Importing TFF imports parts that few people use, and some of them need packages that are gone
    or years old. These parts are postponed (`POSTPONED`): a module of that name is there at once,
    and the real one, never a substitute, runs when something is first asked of it. Others are on
    the list because they take a third of the time of an import.
  * TFF knows Keras 2, which is the package tf-keras (`TF_USE_LEGACY_KERAS`).
  * Two libraries of TensorFlow 2.21 write to the terminal before its log level counts (`_LOUD`).
  * Keras 2 changes the bases of its classes where a model is made in a graph, as TFF makes all of
    them, and models that were there before are broken. Here a model of a graph has a subclass,
    and a metric the class that it had.
  * With numpy 2, TFF asks for the type of a number by what `warnings` has since Python 3.11.
  * TFF's computations with distributed privacy are nested more deeply than the 100 levels that
    protobuf reads unless it is told to.
  * TFF's models of EMNIST draw an integer below 1e9, a float, which Python 3.12 refuses.
  * What TFF starts as its worker listens to everybody, and where a shell has it ignore SIGINT,
    Python waits for it for ever: `engine.processes.worker` starts it instead.

Importing any package of this project calls `install`. Where a script imports TFF first, the
environment must do it: `superquantile install_tff` writes a file that has TensorFlow's import do
so. scripts/venv.sh has done that for .venv. This module imports next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
import functools
import importlib
import importlib.machinery
import os
import sys
import types
from typing import Any
import warnings

from tff_superquantile.stack import postponed

_TFF = "tensorflow_federated.python"
_TFP = "tensorflow_privacy.privacy"
_TFMO = "tensorflow_model_optimization.python.core.api"
_JAX = "jax>=0.4.26,<0.4.39"
_ESTIMATOR = "tensorflow-estimator, and a TensorFlow before 2.16, which had tf.estimator"

POSTPONED = (
  # What needs packages that are not installed.
  postponed.Late(
    f"{_TFF}.core.environments.jax", "jax has no jax.lib.xla_client since 0.4.39", _JAX
  ),
  postponed.Late(
    f"{_TFF}.learning.programs.vizier_program_logic",
    "google-vizier 0.1.11, the one that it works with, pins attrs, numpy and protobuf of 2023",
    "google-vizier==0.1.11",
    ("train_model_with_vizier",),
  ),
  postponed.Late("tensorflow_privacy.v1", "half of it are estimators", _ESTIMATOR),
  postponed.Late(f"{_TFP}.estimators.dnn", "tf.estimator is gone", _ESTIMATOR, ("DNNClassifier",)),
  # What is there, and costs time.
  postponed.Late(
    f"{_TFP}.logistic_regression.datasets",
    "scikit-learn, 0.5 s",
    names=("linearly_separable_labeled_examples", "synthetic_linearly_separable_data"),
  ),
  postponed.Late(
    f"{_TFP}.logistic_regression.multinomial_logistic",
    "scikit-learn",
    names=("logistic_dpsgd", "logistic_objective_perturbation"),
  ),
  postponed.Late(
    f"{_TFP}.logistic_regression.single_layer_softmax",
    "scikit-learn",
    names=("single_layer_softmax_classifier",),
  ),
  *(
    postponed.Late(
      f"{_TFMO}.{name}", "the Keras side of model optimization, 0.8 s for all; TFF uses another"
    )
    for name in ("clustering", "experimental", "quantization", "sparsity")
  ),
  postponed.Late(
    "tensorflow_probability", "0.3 s; TensorFlow Privacy draws discrete Gaussians with it"
  ),
  postponed.Late(
    "dp_accounting.gaussian_mechanism",
    "scipy.stats, see below",
    names=("get_epsilon_gaussian", "get_sigma_gaussian"),
  ),
  *(
    postponed.Late(f"scipy.{name}", "half of scipy's 0.9 s; for epsilons, and Keras looks for it")
    for name in ("ndimage", "optimize", "signal", "stats")
  ),
  postponed.Late("pandas", "0.2 s; Keras imports it to know its tables"),
)

# Importing them loads TensorFlow's shared library, and what that says of processors.
_LOUD = frozenset(
  {
    "tensorflow.python.platform._pywrap_cpu_feature_guard",
    "tensorflow.python.profiler.internal._pywrap_profiler_plugin",
  }
)
_INFORMATION = (
  *(b"I0000 ", b"WARNING: All log messages before absl", b"To enable the following instructions"),
  b" already registered",  # By TensorFlow with CUDA, of what it registers twice itself.
  b" already been registered",
)
_WORKER = f"{_TFF}.core.impl.executor_stacks.executor_factory"  # Starts TFF's worker.
_DTYPES = f"{_TFF}.core.impl.types.dtype_utils"  # Has the types of Python's own numbers.
_INTEGERS = (  # They draw an integer.
  f"{_TFF}.simulation.baselines.emnist.emnist_models",
  f"{_TFF}.simulation.models.mnist",
)
_METRICS = "tf_keras.src.metrics.base_metric"
_VERSIONS = "tf_keras.src.utils.version_utils"  # Chooses the base of a layer or model.
_OF_GRAPHS = "made_by_tff_superquantile_for_graphs"
_KERAS = "TF_USE_LEGACY_KERAS"
_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
  """Holds back what libraries write to the terminal, and then writes all but mere information."""
  try:
    kept = os.dup(2)
  except OSError:  # It is closed.
    yield
    return
  held = os.memfd_create("stderr")
  os.dup2(held, 2)
  try:
    yield
  finally:
    os.dup2(kept, 2)
    os.close(kept)
    with open(held, "rb") as file:
      file.seek(0)
      lines = file.read().splitlines(keepends=True)
    with contextlib.suppress(OSError):  # A terminal that is gone.
      os.write(2, b"".join(line for line in lines if not any(m in line for m in _INFORMATION)))


class _QuietLoader(postponed.Wrapper):
  def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
    with _quiet_stderr():
      return super().create_module(spec)

  def exec_module(self, module: types.ModuleType) -> None:
    with _quiet_stderr():
      super().exec_module(module)


class _WorkerLoader(postponed.Wrapper):
  def exec_module(self, module: types.ModuleType) -> None:
    super().exec_module(module)
    importlib.import_module("tff_superquantile.engine.processes.worker").install()


@contextlib.contextmanager
def _catch_warnings(action: Any, category: type[Warning]) -> Iterator[None]:
  """Is `warnings.catch_warnings` of Python 3.11, as far as TFF needs it."""
  with warnings.catch_warnings():
    warnings.simplefilter(action, category)
    yield


class _DtypesLoader(postponed.Wrapper):
  def exec_module(self, module: types.ModuleType) -> None:
    super().exec_module(module)
    if sys.version_info < (3, 11):
      vars(module)["warnings"] = types.SimpleNamespace(catch_warnings=_catch_warnings)


class _IntegersLoader(postponed.Wrapper):
  def exec_module(self, module: types.ModuleType) -> None:
    super().exec_module(module)
    randint = vars(module)["random"].randint
    vars(module)["random"] = types.SimpleNamespace(randint=lambda a, b: randint(int(a), int(b)))


@functools.cache
def _of_graphs(kind: Any, base: Any) -> type:
  """Returns a class with the same order of bases as Keras's change of `kind` itself."""
  return type(kind.__name__, (kind, base), {"__module__": kind.__module__, _OF_GRAPHS: True})


class _VersionsLoader(postponed.Wrapper):
  def exec_module(self, module: types.ModuleType) -> None:
    super().exec_module(module)
    swap = vars(module)["swap_class"]

    def swap_class(kind: Any, eager: type, of_graphs: Any, is_eager: bool) -> Any:
      # Metrics add variables alone, by any base; MeanMetricWrapper asks whether it is itself.
      if issubclass(kind, importlib.import_module(_METRICS).Metric) or _OF_GRAPHS in vars(kind):
        return kind
      if is_eager or kind is eager or issubclass(kind, of_graphs):
        return swap(kind, eager, of_graphs, is_eager)
      return _of_graphs(kind, of_graphs)

    vars(module)["swap_class"] = swap_class


class _Finder:
  """Finds what is to be postponed or quiet, and leaves all else to the finders behind it."""

  parts = {part.module: part for part in POSTPONED}
  others = {
    _WORKER: _WorkerLoader,
    _DTYPES: _DtypesLoader,
    _VERSIONS: _VersionsLoader,
    **dict.fromkeys(_INTEGERS, _IntegersLoader),
  }

  def find_spec(
    self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
  ) -> importlib.machinery.ModuleSpec | None:
    if name == "tensorflow":
      # What it says of how it was built, of GPUs that are not there and of types of graphs is
      # nothing that a user can act on; its errors are exceptions.
      os.environ.setdefault(_LOG_LEVEL, "3")
    elif name == "tensorflow_federated":
      _check_keras()
      _allow_deep_messages()
    package = sys.modules.get(name.rpartition(".")[0])
    if isinstance(package, postponed.Postponed):
      postponed.run(package)  # As ever, a package has run when a module of it is imported.
    if name not in self.parts and name not in _LOUD and name not in self.others:
      return None
    spec = importlib.machinery.PathFinder.find_spec(name, path, target)
    if spec is None or spec.loader is None:
      return spec
    loader: Any = spec.loader
    if name in self.parts:
      loader = postponed.Loader(loader, self.parts[name])
    elif name in self.others:
      loader = self.others[name](loader)
    elif os.environ.get(_LOG_LEVEL) != "0":
      loader = _QuietLoader(loader)
    spec.loader = loader
    return spec


def _check_keras() -> None:
  """Raises an `ImportError` if an earlier import of TensorFlow has settled on Keras 3."""
  tensorflow = sys.modules.get("tensorflow")
  keras = getattr(tensorflow, "keras", None)  # None while TensorFlow is being imported.
  if keras is not None and not keras.Model.__module__.startswith("tf_keras"):
    raise ImportError(
      f"Found tf.keras of {keras.Model.__module__.partition('.')[0]} 3 in use; TensorFlow Federated"
      " 0.87 needs Keras 2: import tff_superquantile before tf.keras is used, or set"
      f" {_KERAS}=1 before Python starts.",
      name="tensorflow_federated",
    )


def _allow_deep_messages() -> None:
  """Lets protobuf read what is nested more deeply than 100 levels."""
  with contextlib.suppress(ImportError):  # An implementation without that limit.
    importlib.import_module("google._upb._message").SetAllowOversizeProtos(True)


def install() -> None:
  """Prepares this process for the import of TFF. Calling it again does nothing."""
  if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
    os.environ.setdefault(_KERAS, "1")
    sys.meta_path.insert(0, _Finder())


class _AtStart:
  """Calls `install` when TensorFlow or TFF is imported.

  Not before: when Python starts, it does not know yet where the user stands, and a checkout there
  comes before an installed copy.
  """

  def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
    if name not in ("tensorflow", "tensorflow_federated") or self not in sys.meta_path:
      return None
    sys.meta_path.remove(self)
    import importlib.util

    try:
      importlib.import_module("tff_superquantile.stack")
    except ModuleNotFoundError:  # It is no longer installed.
      return None
    return importlib.util.find_spec(name)


def install_at_start(folder: str) -> str:
  """Has every Python of an environment call `install` when it imports TensorFlow or TFF."""
  import inspect  # It is slow to import.

  code = f"import sys\n\n\n{inspect.getsource(_AtStart)}\n\nsys.meta_path.insert(0, _AtStart())\n"
  module = "tff_superquantile_stack"
  path = os.path.join(folder, f"{module}.pth")
  for name, text in ((path.replace(".pth", ".py"), code), (path, f"import {module}\n")):
    with open(name, "w", encoding="utf-8") as file:
      file.write(text)
  return path
