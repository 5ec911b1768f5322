"""TFF is imported beside today's packages, in any order, and nothing of it is replaced."""

import contextlib
import importlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
import uuid
import venv

import numpy as np
import pytest
import tensorflow as tf

from tff_superquantile import stack
from tff_superquantile.stack import postponed

_ROOT = pathlib.Path(__file__).resolve().parent.parent
_SECONDS = 600  # Of patience, not of duration.
_MARK = "WORKERS_OF_A_TEST"  # By which those of one script are known among others.
_THERE = [part for part in stack.POSTPONED if not part.needs]
_MISSING = [part for part in stack.POSTPONED if part.needs]

_SUM = """
import numpy as np
@tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
def total(values):
  return tff.federated_sum(values)
print(total([1, 2, 3]))
"""


@pytest.fixture(scope="module")
def at_start(tmp_path_factory):
  """A folder with the file that prepares every Python that reads it."""
  folder = tmp_path_factory.mktemp("site-packages")
  stack.install_at_start(str(folder))
  return folder


def _run(code, at_start=None, log_level=None, **kwargs):
  """Runs a script in a Python of its own, as in an environment that is prepared, or is not."""
  environment = {**os.environ, "PYTHONPATH": str(_ROOT), "PYTHONSAFEPATH": "1"}
  for name in ("TF_CPP_MIN_LOG_LEVEL", "TF_USE_LEGACY_KERAS"):
    environment.pop(name, None)
  if log_level is not None:
    environment["TF_CPP_MIN_LOG_LEVEL"] = log_level
  # This environment may be prepared itself.
  prepare = "import sys; sys.meta_path[:] = [f for f in sys.meta_path if 'stack' not in repr(f)]\n"
  prepare += (
    "for name in [n for n in sys.modules if n.startswith('tff_s')]: del sys.modules[name]\n"
  )
  prepare += "import os; os.environ.pop('TF_USE_LEGACY_KERAS', None)\n"
  if at_start is not None:
    prepare += f"import site; site.addsitedir({str(at_start)!r})\n"
  command = [sys.executable, "-c", prepare + code]
  mark = f"{_MARK}={uuid.uuid4().hex}"
  environment.update([mark.split("=")])
  result = subprocess.run(
    command, env=environment, capture_output=True, text=True, timeout=_SECONDS, **kwargs
  )
  # They were killed, and take a moment to go.
  end = time.monotonic() + _SECONDS
  while (workers := _workers(mark)) and time.monotonic() < end:
    time.sleep(0.05)
  result.workers = workers
  return result


def _workers(mark):
  """The ids of TFF's workers that have a mark in their environment, and have not ended."""
  found = []
  for path in pathlib.Path("/proc").glob("[0-9]*"):
    with contextlib.suppress(OSError):  # It has ended, or is somebody else's.
      if b"worker_binary" in (path / "cmdline").read_bytes():
        if mark.encode() in (path / "environ").read_bytes().split(b"\0"):
          found.append(int(path.name))
  return found


def test_where_nothing_prepares_it_tff_cannot_be_imported_first():
  """What the other tests show is due to the module."""
  result = _run("import tensorflow_federated")
  assert result.returncode == 1
  assert "No module named 'tensorflow_estimator'" in result.stderr


@pytest.mark.parametrize("first", ["tensorflow", "tensorflow_federated"])
def test_a_script_with_tffs_default_context_ends_and_says_nothing(first, at_start):
  # Jobs of a shell that has no terminal ignore Ctrl-C, and so would TFF's worker.
  ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
  try:
    result = _run(f"import {first}\nimport tensorflow_federated as tff\n{_SUM}", at_start)
  finally:
    signal.signal(signal.SIGINT, ignored)
  assert (result.returncode, result.stdout, result.stderr) == (0, "6\n", "")
  assert result.workers == []


@pytest.mark.parametrize(
  "code",
  [
    f"import tasks\nimport tensorflow_federated as tff\n{_SUM}",
    f"import tff_superquantile as tsq\nimport tensorflow_federated as tff\n"
    f"tsq.set_simulation_context()\n{_SUM}",
  ],
)
def test_our_packages_prepare_it_themselves(code):
  result = _run(code)
  assert (result.returncode, result.stderr) == (0, "")
  assert result.workers == []


def _write_copy(folder, name):
  """Puts the part of the project that prepares imports into a folder, with a version of its own."""
  for part in ("lazy.py", "stack"):
    source = _ROOT / "tff_superquantile" / part
    (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / part)
  text = (_ROOT / "tff_superquantile/__init__.py").read_text()
  (folder / "__init__.py").write_text(f"{text}\n__version__ = {name!r}\n")


def test_a_checkout_comes_before_an_installed_copy(tmp_path):
  venv.create(tmp_path / "venv", with_pip=False)
  (site_packages,) = (tmp_path / "venv/lib").glob("*/site-packages")
  checkout = tmp_path / "checkout"
  for folder, name in ((site_packages, "installed"), (checkout, "checkout")):
    (folder / "tff_superquantile").mkdir(parents=True)
    _write_copy(folder / "tff_superquantile", name)
  (site_packages / "tensorflow.py").write_text("")
  stack.install_at_start(str(site_packages))
  code = "import tensorflow, sys; print(sys.modules['tff_superquantile'].__version__)"
  environment = {n: value for n, value in os.environ.items() if not n.startswith("PYTHON")}

  def run():
    command = [tmp_path / "venv/bin/python", "-c", code]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)

  assert run().stdout == "checkout\n"
  shutil.rmtree(checkout / "tff_superquantile")
  assert run().stdout == "installed\n"
  shutil.rmtree(site_packages / "tff_superquantile")
  code = "import tensorflow"  # As where nothing had ever been installed.
  result = run()
  assert (result.returncode, result.stderr) == (0, "")


def test_tensorflow_s_log_is_there_for_who_asks_for_it(at_start):
  # By which instructions it was built, on every CPU; that oneDNN is on, it says on some.
  assert "cpu_feature_guard" in _run("import tensorflow", at_start, log_level="0").stderr


_ROUNDS = """
import tensorflow as tf, tensorflow_federated as tff, sys
import tff_superquantile as tsq
from tff_superquantile import stack
from tff_superquantile.stack import postponed
sys.path.insert(0, "tests")
from helpers import problems
tsq.set_simulation_context()
for process in (
  tsq.build_superquantile_fed_avg(problems.keras_model_fn, 0.5,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1)),
  tff.learning.algorithms.build_weighted_fed_avg(problems.keras_model_fn,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1)),
):
  process.next(process.initialize(), problems.datasets(problems.client_arrays()))
assert tf.keras.Model.__module__.startswith("tf_keras")
for part in stack.POSTPONED:
  print(part.module, isinstance(sys.modules.get(part.module), postponed.Postponed))
"""


def test_rounds_need_nothing_that_is_postponed(at_start):
  """Neither TFF nor TensorFlow Privacy asks these parts for anything, or this list must change."""
  result = _run(_ROUNDS, at_start, cwd=_ROOT)
  assert result.returncode == 0, result.stderr
  # Nor does TensorFlow say what its compilers think of graphs, or that there is no GPU.
  assert not any(line[1:5] == "0000" for line in result.stderr.splitlines())
  found = dict(line.split() for line in result.stdout.splitlines())
  assert set(found) == {part.module for part in stack.POSTPONED}
  # Whether the rest has run is a matter of time alone.
  needed = [part.module for part in stack.POSTPONED if found[part.module] != "True"]
  assert not {part.module for part in _MISSING} & set(needed)
  assert len(needed) <= 2, needed


def _imported(name):
  __import__("tensorflow_federated")
  __import__(name)
  return sys.modules[name]


@pytest.mark.parametrize("part", _THERE, ids=lambda part: part.module)
def test_what_is_there_is_the_real_thing(part):
  module = _imported(part.module)
  postponed.run(module)
  assert type(module) is types.ModuleType and module.__file__
  for name in part.names:
    assert callable(getattr(module, name)) and not isinstance(
      getattr(module, name), postponed._StandIn
    )


@pytest.mark.parametrize("part", _MISSING, ids=lambda part: part.module)
def test_what_is_missing_says_what_it_needs(part):
  module = _imported(part.module)
  for _ in range(2):  # Not only the first time.
    with pytest.raises(ImportError, match="Found no way to import .* it needs ") as raised:
      getattr(module, part.names[0])() if part.names else module.computation
    assert part.needs in str(raised.value) and raised.value.name == part.module
    assert isinstance(module, postponed.Postponed)


@pytest.fixture
def package(tmp_path, monkeypatch):
  """A package of a slow module, postponed, that needs nothing."""
  folder = tmp_path / "slow_package"
  (folder / "inner").mkdir(parents=True)
  (folder / "__init__.py").write_text("ran = []\n")
  (folder / "slow.py").write_text(
    "import time, slow_package\n"
    "slow_package.ran.append(1)\n"
    "time.sleep(0.2)\n"
    "class Thing:\n  kind = 'real'\n"
    "def double(x): return 2 * x\n"
  )
  (folder / "inner" / "__init__.py").write_text("import slow_package\nslow_package.ran.append(2)\n")
  (folder / "inner" / "leaf.py").write_text("import slow_package\nslow_package.ran.append(3)\n")
  (folder / "broken.py").write_text("raise RuntimeError('broken')\n")
  parts = {
    "slow_package.slow": ("Thing", "double"),
    "slow_package.inner": (),
    "slow_package.broken": (),
  }
  added = {name: postponed.Late(name, "a test", names=names) for name, names in parts.items()}
  monkeypatch.setattr(stack._Finder, "parts", {**stack._Finder.parts, **added})
  monkeypatch.syspath_prepend(str(tmp_path))
  stack.install()
  yield __import__("slow_package")
  for name in [name for name in sys.modules if name.startswith("slow_package")]:
    del sys.modules[name]


def test_names_stand_in_until_they_are_used(package):
  from slow_package.slow import Thing
  from slow_package.slow import double

  module = sys.modules["slow_package.slow"]
  assert package.ran == [] and "not loaded" in repr(Thing)
  assert not hasattr(module, "__wrapped__") and package.ran == []  # As `inspect` asks of all.

  class Own(Thing):
    pass

  assert package.ran == [1] and Own.kind == "real" and module.Thing in Own.__mro__
  assert isinstance(Own(), Thing) and not isinstance(1, Thing)
  assert double(4) == 8 and Thing.kind == "real" and type(Thing()) is module.Thing
  assert type(module) is types.ModuleType and package.ran == [1]
  with pytest.raises(AttributeError, match="nothing"):
    module.nothing  # noqa: B018


def test_pythons_own_numbers_have_their_types():
  import tensorflow_federated as tff

  numbers = tff.federated_computation(lambda: (1, 2**40, 0.5, True))
  assert str(numbers.type_signature.result) == "<int32,int64,float32,bool>"
  with pytest.raises(ValueError, match="range"):
    tff.federated_computation(lambda: 2**70)


def test_computations_may_be_nested_deeply():
  """As those of `tff.learning.ddp_secure_aggregator` are."""
  import tensorflow_federated as tff

  block = tff.framework.Reference("x", np.int32)
  for _ in range(200):
    block = tff.framework.Selection(tff.framework.Struct([block]), index=0)
  content = block.proto.SerializeToString()
  assert type(block.proto).FromString(content).SerializeToString() == content


@pytest.mark.parametrize("name", ["baselines.emnist.emnist_models", "models.mnist"])
def test_integers_may_be_drawn_below_a_float(name):
  module = importlib.import_module(f"tensorflow_federated.python.simulation.{name}")
  assert 1 <= module.random.randint(1, 1e9) <= 1e9
  assert isinstance(module.random.randint(1, 1e9), int)


def test_keras_models_survive_those_of_graphs():
  """TFF makes each model in a graph; Keras then gives the classes of all others other bases."""
  layers = tf.keras.layers

  class Sub(tf.keras.Model):
    def __init__(self):
      super().__init__()
      self.dense = layers.Dense(2)

    def call(self, x):
      return self.dense(x)

  class Functional(tf.keras.Model):
    def __init__(self):
      x = layers.Input([3])
      super().__init__(inputs=x, outputs=layers.Dense(2)(x))

  def recurrent():
    inner = [layers.InputLayer([3]), layers.Reshape([3, 1]), layers.LSTM(2), layers.Dropout(0.5)]
    return tf.keras.Sequential([*inner, layers.BatchNormalization()])

  x = np.arange(6, dtype=np.float32).reshape(2, 3)
  for make in (Sub, Functional, recurrent):
    model = make()
    model.compile("sgd", "mse")
    expected, values = model(x).numpy(), model.get_weights()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
      metrics = [
        tf.keras.metrics.MeanSquaredError(),
        tf.keras.metrics.MeanMetricWrapper(tf.keras.losses.MeanSquaredError()),
      ]
      metrics = [type(m).from_config(m.get_config()) for m in metrics]  # As TFF's finalizers do.
      in_graph = make()
      output = in_graph(tf.constant(x))
      session.run(tf.compat.v1.global_variables_initializer())
      for variable, value in zip(in_graph.weights, values):
        variable.load(value, session)
      np.testing.assert_allclose(session.run(output), expected, rtol=1e-6)
    np.testing.assert_array_equal(model.predict(x, verbose=0), expected)
    assert model.evaluate(x, expected, verbose=0) == pytest.approx(0.0)
    for metric in metrics:
      metric = type(metric).from_config(metric.get_config())
      metric.update_state([1.0], [3.0])
      assert metric.result().numpy() == 4.0
    assert model.fit(x, expected + 1, verbose=0).history["loss"][0] > 0


def test_threads_wait_for_one_another(package):
  import slow_package.slow as module

  found = []
  threads = [threading.Thread(target=lambda: found.append(module.__dir__())) for _ in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert package.ran == [1] and all("double" in names for names in found) and len(found) == 8


def test_a_package_runs_before_its_modules(package):
  import slow_package.inner

  assert package.ran == []
  import slow_package.inner.leaf  # noqa: F401

  assert package.ran == [2, 3]


def test_a_module_that_breaks_breaks_as_ever(package):
  import slow_package.broken as module

  for _ in range(2):
    with pytest.raises(RuntimeError, match="broken"):
      module.anything  # noqa: B018


def test_who_has_used_keras_3_is_told(monkeypatch):
  model = type("Model", (), {"__module__": "keras.src.models.model"})
  fake = types.SimpleNamespace(keras=types.SimpleNamespace(Model=model))
  monkeypatch.setitem(sys.modules, "tensorflow", fake)
  with pytest.raises(ImportError, match="Found tf.keras of keras 3 .* TF_USE_LEGACY_KERAS=1"):
    stack._Finder().find_spec("tensorflow_federated", None)


def test_only_information_is_held_back(capfd):
  with stack._quiet_stderr():
    os.write(2, b"I0000 00:00:1.0 1 port.cc:1] oneDNN is on\nE0000 broken\nF0000 no AVX\n")
  assert capfd.readouterr().err == "E0000 broken\nF0000 no AVX\n"


def test_installing_twice_changes_nothing():
  before = list(sys.meta_path)
  stack.install()
  assert sys.meta_path == before
