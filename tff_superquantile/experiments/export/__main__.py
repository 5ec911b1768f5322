"""Exports a finished run's model for programs that know nothing of this project.

    superquantile export RUN_DIR --format=saved_model --out=DIR

writes DIR with the model, from raw examples to `logits` and `probabilities`, and beside it
labels.txt, the names of the classes in the order of the probabilities, MODEL_CARD.md, tuning.json,
by which `superquantile personalize` tunes it to one client's rows, and columns.json, by which it
reads those of a table:

    saved_model   saved_model/, for TensorFlow
    keras         model.keras, of Keras' own layers, for `tf.keras.models.load_model`
    tflite        model.tflite, of TensorFlow Lite's own operators
    npz           model.npz, the weights by name and the labels, for NumPy

No client's data are read. DIR, which must be new, is there whole or not at all. The exit code is 0,
or 2 for a mistake in the arguments, a run that has not finished, or a model that has no such form.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import sys
from typing import Any

from privacy.settings import command_line
from tff_superquantile import atomic_files
from tff_superquantile.experiments import cli
from tff_superquantile.experiments import finished_run
from tff_superquantile.experiments.config import flags as train_flags
from tff_superquantile.experiments.export import formats
from tff_superquantile.experiments.run import run_folder


def define(parser: command_line.Parser) -> None:
  finished_run.add_arguments(parser)
  purposes = "; ".join(f"{name}, {export.purpose}" for name, export in formats.FORMATS.items())
  command_line.add_flag(parser, "format", str, "saved_model", purposes)
  out: dict[str, Any] = dict(type=pathlib.Path, metavar="DIR", required=True)
  parser.add_argument("--out", help="the folder to write", **out)


def main(args: argparse.Namespace) -> None:
  run = run_folder.find_finished(args.folder)
  formats.FORMATS[args.format]  # Or a sentence that there is none.
  finished_run.check_new(args.out)
  config = finished_run.config(run, finished_run.passed_flags(args, train_flags.WHERE_DATA_IS))
  with cli.starting_tensorflow():
    from tff_superquantile.experiments.export import examples
    from tff_superquantile.experiments.export import exported_model
    from tff_superquantile.experiments.export import model_card

  model = exported_model.load(run, config)
  print(f"Exporting {run.path}", file=sys.stderr, flush=True)
  card = model_card.build(
    run,
    raw=model.preprocessing.description,
    labels=model.labels,
    example=examples.code(model, args.format),
  )
  with atomic_files.temporary_folder(args.out) as temporary:
    folder = pathlib.Path(temporary)
    formats.write(model, args.format, folder)
    (folder / formats.CARD).write_text(card, encoding="utf-8")
    how = dataclasses.asdict(exported_model.tuning(model, config))
    atomic_files.write_json(folder / formats.TUNING, how)
    os.rename(folder, args.out)
  print(f"Written: {args.out}")


if __name__ == "__main__":
  sys.exit(cli.run(sys.modules[__name__]))
