"""The rows of the additions, one of each table."""

import pathlib

import capped_fed_avg
import diary
import plain_text
import slow_geometric

from privacy import parts
from tff_superquantile.experiments import studies
from tff_superquantile.experiments.export import formats
from tff_superquantile.experiments.run import trackers
from tff_superquantile.experiments.run.parts import methods

methods.METHODS["capped_fed_avg"] = capped_fed_avg.CappedFedAvg
parts.THRESHOLDS["slow_geometric"] = slow_geometric.SlowGeometric
formats.FORMATS["plain_text"] = plain_text.PLAIN_TEXT
trackers.TRACKERS["diary"] = trackers.TrackerKind("json", "json", diary.Diary)
studies.STUDIES["lengths"] = "How long did each method train?"
studies.__path__.append(str(pathlib.Path(__file__).parent))  # In place of a file in the package.
