"""The bar of a run: which values it shows, and in which units."""

import pytest
import tqdm

from tff_superquantile.evaluation import errors
from tff_superquantile.simulation import progress

_VALUES = {"test_error_mean": 0.25, "test_error_p90": 0.5, "cohort_loss_mean": 1.5, "own": 3.0}


@pytest.mark.parametrize("error", errors.ERRORS)
def test_errors_are_in_the_units_of_reports(error, capsys, monkeypatch):
  monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)
  bar = progress.ProgressBar("a run", 10, error=error)
  bar.show({**_VALUES, "num_excluded": 0.0}, 4)
  bar.close()
  shown = capsys.readouterr().err
  in_units = {
    "misclassification": "test error=25.0%, p90=50.0%",
    "rmse": "test error=0.250, p90=0.500",
  }
  assert in_units[error] in shown and "a run:  40%" in shown and "loss=1.500" in shown
  assert "own" not in shown and "left out" not in shown
