"""The page's answers to the pitfalls of private training name tests that are there."""

import pathlib
import re

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_PITFALLS = (
  "Division by batch size",
  "Sensitivity alignment",
  "Accounting and batch selection mismatch",
  "Public vs. private metadata",
  "Neighboring relation clarity",
  "Zero-sized batches and non-finite gradients",
  "Gradient accumulation",
  "Cross-example operations",
  "Auxiliary information",
  "Randomness and RNG injection",
  "Floating point robustness",
  "Finite-precision numerical error",
)


def test_each_pitfall_has_an_answer_and_tests_that_are_there():
  page = (_ROOT / "docs/privacy_review.md").read_text(encoding="utf-8")
  section = page.partition("\n## Twelve pitfalls\n")[2].partition("\n## ")[0]
  rows = [re.split(r" \| ", line.strip("| ")) for line in section.splitlines() if "::" in line]
  assert tuple(row[0] for row in rows) == _PITFALLS
  for _, answer, tests in rows:
    assert answer and re.fullmatch(r"`[^`]+`(, `[^`]+`)*", tests)
    for test in re.findall(r"`([^`]+)`", tests):
      path, _, name = test.partition("::")
      assert f"\ndef {name}(" in (_ROOT / path).read_text(encoding="utf-8"), test
