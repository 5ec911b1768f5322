"""Models as pure functions of their weights.

A client's graph holds nothing but `predict_on_batch` and the loss: no Keras objects, variables or
metric state beyond two numbers, which is most of what makes a round fast. All are
`tff.learning.models.FunctionalModel`, so TFF's own algorithms take them too.
"""

from tasks.models.classifiers import Classifier
from tasks.models.classifiers import build_classifier
from tasks.models.classifiers import build_linear_classifier
from tasks.models.classifiers import build_logistic_regression
from tasks.models.networks import build_convnet
from tasks.models.recurrent import build_character_lstm
from tasks.models.recurrent import build_lstm
from tasks.models.tables import build_table_model

__all__ = (
  "Classifier",
  "build_character_lstm",
  "build_classifier",
  "build_convnet",
  "build_linear_classifier",
  "build_logistic_regression",
  "build_lstm",
  "build_table_model",
)
