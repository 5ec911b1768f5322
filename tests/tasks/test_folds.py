"""Folds of a cross-validation over clients: who is tested on in which run."""

from helpers import pools
import pytest

from tasks import places
from tasks import request as request_lib
from tasks import splits


def _pool(number):
  return pools.pool([f"client_{i}" for i in range(number)])


@pytest.mark.parametrize("number, folds", [(4, 4), (23, 5), (100, 2)])
def test_each_client_is_tested_on_once(number, folds):
  tested = []
  for seed in range(folds):
    train, test = places.take_fold(_pool(number), folds, seed)
    assert not set(train.client_ids) & set(test.client_ids)
    assert len(train.client_ids) + len(test.client_ids) == number
    tested += test.client_ids
    assert len(test.client_ids) in (number // folds, -(-number // folds))
  assert sorted(tested) == sorted(_pool(number).client_ids)


def test_a_second_cross_validation_deals_anew():
  def folds_from(first):
    return {
      frozenset(places.take_fold(_pool(40), 4, seed)[1].client_ids)
      for seed in range(first, first + 4)
    }

  assert folds_from(0) != folds_from(4)
  assert set().union(*folds_from(4)) == set(_pool(40).client_ids)


def test_refuses_more_folds_than_clients():
  with pytest.raises(ValueError, match="5 folds for 4 clients; expected at most .* lower --folds"):
    places.take_fold(_pool(4), 5, 0)


@pytest.mark.parametrize(
  "values, sentence",
  [
    (dict(folds=1), "expected at least 2"),
    (dict(folds=3, client_split="shuffled"), "expected a split by_id"),
    (dict(folds=3, is_private=True), "what is tested on is not"),
    (dict(folds=-1), "expected at least 0"),
    (dict(held_out_examples=0.2, folds=3), "expected one of them"),
    (dict(held_out_examples=0.2, is_private=True), "what is tested on is not"),
  ],
)
def test_refuses_what_cannot_be_tested_on(values, sentence):
  with pytest.raises(ValueError, match=sentence):
    request_lib.of(name="own", **values)


def test_refuses_clients_that_come_divided():
  request = request_lib.Request("", folds=3)
  with pytest.raises(ValueError, match="come as training and test clients"):
    splits.Split().apply([_pool(3), _pool(3)], request)
