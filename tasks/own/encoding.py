"""Describes what the columns of a table became; the only source of all that encodes rows.

The rows of the run's own table, those of later tables (`Encoding.encode`, in numpy) and those that
an exported model takes (`Encoding.apply`, in TensorFlow) follow the same description, which a run
keeps. It has nothing of the clients but these numbers and texts,
and no name, number or hash of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import json
import math
import typing
from typing import Any

import numpy as np

from tasks.own import columns as columns_lib
from tasks.own import features as features_lib
from tasks.own import labels as labels_lib
from tasks.own import notation
from tasks.own import values as values_lib

if typing.TYPE_CHECKING:  # Rows are encoded without TensorFlow, which graphs need alone.
  import tensorflow as tf

  from tasks import preprocessing

_KINDS = ("number", "boolean", features_lib.CATEGORY)
# Where an exported model is tried, in standard deviations from the mean.
_STEPS = np.array([-3.0, -1.0, -0.1, 0.0, 0.1, 1.0, 3.0])


@dataclasses.dataclass(frozen=True)
class Encoding:
  """What the columns of a table became; all are values of JSON."""

  features: tuple[features_lib.Feature, ...]  # The features, in the order of the model's inputs.
  label: labels_lib.Label  # The labels.
  # The columns that were to be features and are none, each with the reason.
  dropped: Mapping[str, str]

  @property
  def num_inputs(self) -> int:
    """Returns the number of the model's inputs."""
    return sum(feature.width for feature in self.features)

  def to_text(self) -> str:
    """Returns JSON, from which `from_text` makes the same encoding, to the last bit."""
    return json.dumps(dataclasses.asdict(self), indent=2) + "\n"

  def check_fits(
    self, columns: columns_lib.Columns, label_kind: str | None, classes: str | None
  ) -> None:
    """Refuses a run that asks for other columns, kind of labels or classes (None for any)."""
    names = {feature.name for feature in self.features}
    label = self.label
    named = labels_lib.of_names(label.name, classes, label_kind) if classes else label
    features = set(columns.features) - set(self.dropped) if columns.are_named else names
    for flag, asked, expected in (
      ("features", ",".join(sorted(features)), ",".join(sorted(names))),
      ("label_column", columns.label, label.name),
      ("label_kind", label_kind or label.kind, label.kind),
      ("classes", ",".join(named.classes), ",".join(label.classes)),
    ):
      if asked != expected:
        raise ValueError(
          f"Found other columns than the model was trained on, --{flag}={asked} in place of"
          f" {expected}; expected the same: ask for these, or start without that model."
        )

  def encode(self, raw: np.ndarray) -> np.ndarray:
    """Encodes float64 [n, features] of `features.read` as float32 [n, num_inputs], like `apply`."""
    x = np.zeros((len(raw), self.num_inputs), np.float32)
    start = 0
    for feature, values in zip(self.features, raw.T):
      _encode(feature, values, x[:, start : start + feature.width])
      start += feature.width
    return x

  def apply(self, raw: tf.Tensor) -> tf.Tensor:
    """Encodes raw examples, float64 [n, features], in a graph as float32 [n, num_inputs].

    NaN is a missing value, 0 and 1 are truth values, and a category is its number; any other number
    is a category that the model does not know. float32 will do for numbers that it holds.
    """
    import tensorflow as tf

    is_category = np.array([feature.kind == features_lib.CATEGORY for feature in self.features])
    numeric, textual = (np.flatnonzero(mask).tolist() for mask in (~is_category, is_category))
    parts = _apply_numbers(tf.gather(raw, numeric, axis=1), [self.features[i] for i in numeric])
    for i in textual:
      values, categories = tf.cast(raw[:, i], tf.float32), float(len(self.features[i].categories))
      known = tf.where(tf.logical_and(values >= 0.0, values < categories), values, -1.0)
      # A missing value is the category after the others if there is one. Else it is none.
      number = tf.where(tf.math.is_nan(values), categories, known)
      parts.append(tf.one_hot(tf.cast(number, tf.int32), self.features[i].width))
    # The features of the inputs in `parts`: numbers, then where these are missing, then texts.
    owners = [*numeric, *(i for i in numeric if self.features[i].has_missing)]
    owners += [i for i in textual for _ in range(self.features[i].width)]
    order = np.argsort(owners, kind="stable").astype(np.int32)
    return tf.gather(tf.concat(parts, axis=1), order, axis=1)

  def preprocessing(self) -> preprocessing.Preprocessing:
    """Builds the preprocessing of an exported model, whose raw examples are those of `apply`."""
    import tensorflow as tf

    from tasks import preprocessing

    return preprocessing.Preprocessing(
      tf.TensorSpec([None, len(self.features)], tf.float64, "features"),
      self._describe(),
      self.apply,
      tf.TensorSpec([None, self.num_inputs], tf.float32),
      probe=self._probe,
      arrays=self._arrays(),
    )

  def _arrays(self) -> dict[str, np.ndarray]:
    """Returns what each column became, arrays of shape [features], and all categories in a row."""
    features = self.features
    return {
      "columns": np.array([feature.name for feature in features]),
      "mean": np.array([feature.mean for feature in features], np.float64),
      "std": np.array([feature.std for feature in features], np.float64),
      "has_missing": np.array([feature.has_missing for feature in features], bool),
      "num_categories": np.array([len(feature.categories) for feature in features], np.int64),
      "categories": np.array([text for feature in features for text in feature.categories], str),
    }

  def _probe(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows with every category and numbers far and near, and what the run makes of them."""
    features = self.features
    rows = np.arange(max(len(_STEPS), *(feature.width + 2 for feature in features)) + 1)
    raw = np.empty([len(rows), len(features)])
    for i, feature in enumerate(features):
      if feature.kind == features_lib.CATEGORY:
        raw[:, i] = rows % (len(feature.categories) + 2) - 1  # And two that are none.
      elif feature.kind == "boolean":
        raw[:, i] = rows % 2
      else:
        raw[:, i] = feature.mean + feature.std * _STEPS[(rows + i) % len(_STEPS)]
    raw[-1] = np.nan
    places = np.where(raw < [max(len(f.categories), 1) for f in features], raw, -1.0)
    are_categories = [feature.kind == features_lib.CATEGORY for feature in features]
    return raw, self.encode(np.where(are_categories & ~np.isnan(raw), places, raw))

  def _describe(self) -> str:
    """Says what a raw example is."""
    columns = []
    for feature in self.features:
      listed = ", ".join(f"{i} {name}" for i, name in enumerate(feature.categories))
      unit = f" in {feature.unit}" if feature.unit else ""
      columns.append(f"{feature.name} ({listed})" if listed else f"{feature.name}{unit}")
    return (
      "a row of numbers, float64 (float32 for TensorFlow Lite), NaN where a value is missing, truth"
      f" values as 0 and 1, categories by their numbers: {'; '.join(columns)}"
    )


def _encode(feature: features_lib.Feature, values: np.ndarray, out: np.ndarray) -> None:
  """Writes the inputs of a feature into `out`, float32 [n, width], which is all zeros."""
  missing = np.isnan(values)
  if feature.kind != features_lib.CATEGORY:
    limit = features_lib.LARGEST_INPUT
    scaled = np.clip((values - feature.mean) / feature.std, -limit, limit)
    out[:, 0] = np.where(missing, 0.0, scaled)
    if feature.has_missing:
      out[:, 1] = missing
    return
  of_missing = len(feature.categories) if feature.has_missing else -1
  places = np.where(missing, of_missing, values).astype(np.int64)
  known = np.flatnonzero(places >= 0)
  out[known, places[known]] = 1.0


def _apply_numbers(values: tf.Tensor, features: Sequence[features_lib.Feature]) -> list[tf.Tensor]:
  """Returns the inputs of numbers [n, features], then those that say where these are missing."""
  if not features:
    return []
  import tensorflow as tf

  means, stds = (np.array([getattr(f, n) for f in features], np.float64) for n in ("mean", "std"))
  missing = tf.math.is_nan(values)
  limit = features_lib.LARGEST_INPUT
  # A mean that float32 does not hold is subtracted in two steps.
  with np.errstate(over="ignore"):
    high = means.astype(values.dtype.as_numpy_dtype)
    low, scales = (a.astype(high.dtype) for a in (means - high, stds))
  scaled = tf.clip_by_value((values - high - low) / scales, -limit, limit)
  parts = [tf.cast(tf.where(missing, tf.zeros_like(values), scaled), tf.float32)]
  has_missing = np.array([feature.has_missing for feature in features], bool)
  if has_missing.any():
    flags = tf.gather(missing, np.flatnonzero(has_missing), axis=1)
    parts.append(tf.cast(flags, tf.float32))
  return parts


def from_text(text: str) -> Encoding:
  """Makes the encoding of which `Encoding.to_text` made a text."""
  try:
    return from_json(json.loads(text))
  except (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
  ) as error:
    raise ValueError(
      f"Found that columns.json of the run cannot be read ({type(error).__name__}: {error});"
      " expected it as the run wrote it: bring it back, or train again."
    ) from error


def with_label(text: str, name: str) -> str:
  """Returns an encoding's text for data whose column of labels has this name."""
  known = from_text(text)
  if known.label.name == name:
    return text
  return dataclasses.replace(known, label=dataclasses.replace(known.label, name=name)).to_text()


def from_json(values: Mapping[str, Any]) -> Encoding:
  """Makes an encoding of values of JSON, after checking all names, kinds and numbers."""
  features = [features_lib.Feature(**{**f, **_tuples(f, "categories")}) for f in values["features"]]
  label = labels_lib.Label(**{**values["label"], **_tuples(values["label"], "classes")})
  encoding = Encoding(tuple(features), label, dict(values["dropped"]))
  _check(encoding)
  return encoding


def _tuples(values: Mapping[str, Any], texts: str) -> dict[str, tuple]:
  """Returns the lists of a part of an encoding."""
  return {name: tuple(values[name]) for name in (texts, "shares")}


def _check(encoding: Encoding) -> None:
  """Raises a `ValueError` unless `fit` can have made the encoding: else a model's input is none."""
  parts: tuple[features_lib.Feature | labels_lib.Label, ...]
  parts = (*encoding.features, encoding.label)
  for part in parts:
    numbers = (part.mean, part.std)
    if any(isinstance(x, bool) or not isinstance(x, (int, float)) for x in numbers):
      raise ValueError(f"mean and std of {part.name!r} are no numbers")
    if not (all(map(math.isfinite, numbers)) and part.std > 0.0):
      raise ValueError(f"mean {part.mean} and std {part.std} of {part.name!r}")
  names = [*(feature.name for feature in encoding.features), encoding.label.name]
  for texts in (names, encoding.label.classes, *(f.categories for f in encoding.features)):
    if any(not isinstance(text, str) for text in texts) or len(set(texts)) < len(texts):
      raise ValueError("a name, class or category comes twice or is no text")
  for part in parts:
    values = part.classes if isinstance(part, labels_lib.Label) else part.categories
    are_fractions = all(0 <= share <= 1 for share in part.shares)
    if part.shares and not (are_fractions and len(part.shares) == len(values)):
      raise ValueError(f"shares of {part.name!r} that are not those of its values")
  for feature in encoding.features:
    if feature.kind not in _KINDS or not isinstance(feature.has_missing, bool):
      raise ValueError(f"kind {feature.kind!r} of {feature.name!r}")


def fit(
  frame: Mapping[str, values_lib.Column],
  columns: columns_lib.Columns,
  label_kind: str | None,
  classes: str | None,
  reference: np.ndarray,
) -> tuple[Encoding, dict[str, str]]:
  """Finds out what the columns of a table become, with a remark on each feature, perhaps "".

  `reference`, bool [rows], has the rows of the reference clients. Without `label_kind` or `classes`
  the labels tell. A column that the user named must be usable; others are dropped.
  """
  label = labels_lib.of_flags(frame[columns.label], label_kind, classes, reference)
  label = labels_lib.with_shares(label, frame[columns.label][reference])
  features, remarks, dropped = [], {}, {}
  elsewhere = notation.one_mark(frame[name] for name in columns.features)
  for name in columns.features:
    feature, remark = features_lib.fit(frame[name], reference, elsewhere)
    if feature is not None:
      features.append(feature)
      remarks[name] = remark
      continue
    if columns.are_named and "categories" in remark:
      raise ValueError(
        f"Found {remark}, in column {name!r} of --features; expected at most"
        f" {features_lib.MOST_CATEGORIES} that repeat: leave it out, or group its values."
      )
    if columns.are_named and remark.startswith(features_lib.OF_TYPE):
      raise ValueError(
        f"Found values {remark}, in column {name!r} of --features; expected numbers, truth values"
        " or texts: leave it out, or write them as one of these."
      )
    dropped[name] = remark
  if not features:
    reasons = "; ".join(f"{name}: {remark}" for name, remark in dropped.items()) or "none"
    raise ValueError(
      f"Found no feature that a model could use in the table ({reasons}); expected a column of"
      f" numbers or of at most {features_lib.MOST_CATEGORIES} categories: name others in"
      " --features."
    )
  return Encoding(tuple(features), label, dropped), remarks
