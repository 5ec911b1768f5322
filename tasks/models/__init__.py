"""Models as pure functions of their weights.

A client's graph holds nothing but `predict_on_batch` and the loss: no Keras objects, variables or
metric state beyond two numbers, which is most of what makes a round fast. All are
`tff.learning.models.FunctionalModel`, so TFF's own algorithms take them too.
"""

from tasks.models.classifiers import Classifier as Classifier
from tasks.models.classifiers import build_classifier as build_classifier
from tasks.models.classifiers import build_linear_classifier as build_linear_classifier
from tasks.models.classifiers import build_logistic_regression as build_logistic_regression
from tasks.models.networks import build_convnet as build_convnet
from tasks.models.recurrent import build_character_lstm as build_character_lstm
from tasks.models.recurrent import build_lstm as build_lstm
from tasks.models.tables import build_table_model as build_table_model
