"""Word vectors: those of the words asked for, and what is wrong with which line."""

from helpers import emnist_fixtures
import numpy as np
import pytest

from tasks.sent140 import glove


def read(path, *words):
  return glove.read_vectors(str(path), {word: i for i, word in enumerate(words)})


def test_vectors_of_the_words_asked_for(tmp_path):
  path = tmp_path / "v.txt"
  path.write_bytes(
    "good 1.5 -2e-1\nbad 3 4\n\ncafé 5 6\n's 7 8 \r\ngood 9 9\n".encode()
    + b"\xff\xfe 10 11\nnon\xc2\xa0breaking 12 13\nnext\xc2\x85line 14 15"
  )
  vectors, known = read(path, "café", "missing", "good", "'s", "next\x85line", "\ud83d")
  assert vectors.dtype == np.float32
  np.testing.assert_array_equal(
    vectors, np.float32([[5, 6], [0, 0], [1.5, -0.2], [7, 8], [14, 15], [0, 0]])
  )
  np.testing.assert_array_equal(known, [True, False, True, True, True, False])


def test_words_with_spaces_are_no_reason_to_stop(tmp_path):
  path = tmp_path / "v.txt"
  path.write_text("good 1 2\n. . 3 4\nat name@domain.com 5 6\nat 7 8\n")
  vectors, known = read(path, "at", ".")
  np.testing.assert_array_equal(vectors, np.float32([[7, 8], [0, 0]]))
  np.testing.assert_array_equal(known, [True, False])


@pytest.mark.parametrize(
  "text,message",
  [
    ("good 1 2\nbad 3\n", "line 2 has 1 numbers; expected a word and 2"),
    ("good 1 2\nbad 3 4 5\n", "line 2 has more than 2 numbers"),
    ("good 1 2\nbad 3 x\n", "line 2 has something other than numbers"),
    ("good 1 2\nbad 3  4\n", "line 2 has more than 2 numbers"),
    ("good 1 2\nbad\t3\t4\n", "line 2 has 0 numbers"),
    ("good 1 2\nbad nan 4\n", "line 2 has a number that is not finite"),
    ("good 1 2\nbad 1e999 4\n", "line 2 has a number that is not finite"),
    ("good\n", "line 1 has 0 numbers; expected a word and some"),
    ("400000 50\ngood 1 2\n", "line 2 has more than 1 numbers"),
    ("", "none of the 1 words"),
    ("bad 1 2\n", "none of the 1 words"),
  ],
)
def test_broken_files(tmp_path, text, message):
  path = tmp_path / "v.txt"
  path.write_text(text)
  with emnist_fixtures.refused(str(path), message):
    read(path, "good")


def test_the_file_beside_the_data_or_the_one_named(tmp_path):
  beside = tmp_path / glove.FILE_NAME
  with emnist_fixtures.refused(glove.FILE_NAME, str(tmp_path), "download sent140", "--glove"):
    glove.find_file("", str(tmp_path), "")
  beside.write_text("good 1 2\n")
  (tmp_path / "tweets.csv").write_text("")
  assert glove.find_file("", str(tmp_path), "") == str(beside)
  assert glove.find_file("", str(tmp_path / "tweets.csv"), "") == str(beside)
  assert glove.find_file("", "", str(tmp_path)) == str(beside)  # Where it is downloaded to.
  other = tmp_path / "other.txt"
  with emnist_fixtures.refused(str(other), "--glove"):
    glove.find_file(str(other), str(tmp_path), "")
  other.write_text("good 1 2\n")
  assert glove.find_file(str(other), str(tmp_path), "") == str(other)


def test_all_words_of_a_file(tmp_path):
  path = tmp_path / "v.txt"
  path.write_bytes(
    "good 1 2\n. . 3 4\n 5 6\nnext\x85line 7 8\r\ngood 9 9\n\n".encode() + b"\xff 1 2\nbad 3 4"
  )
  words = glove.read_words(str(path))
  assert words == {"good": 0, "next\x85line": 1, "bad": 2}
  vectors, known = glove.read_vectors(str(path), words)
  assert known.all()
  np.testing.assert_array_equal(vectors, np.float32([[1, 2], [7, 8], [3, 4]]))
  path.write_text("")
  assert glove.read_words(str(path)) == {}
