"""Reads what pages tell people to type."""

import re
import shlex
import textwrap

from tff_superquantile import commands as front

PYTHON = ".venv/bin/python"
# Commands of the front that the script hands on; doctor and download are among its experiments.
OF_THE_SCRIPT = front.COMMANDS.keys() - {"doctor", "download", "install_tff"}


def fenced(text):
  """Yields (language, content, whether only blank lines lie since the block before)."""
  end = 0
  for match in re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE):
    follows = end > 0 and not text[end : match.start()].strip()
    end = match.end()
    yield match[2], textwrap.dedent(match[3]), follows


def indented(text):
  """Yields code blocks that are marked by four spaces, which lists also are made of."""
  text = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.DOTALL | re.MULTILINE)
  for block in re.findall(r"(?:\A|\n)\n((?: {4}.*\n)+)", text):
    if re.match(r" {4}(\./|\.venv/|docker )", block):
      yield textwrap.dedent(block)


def split(shell):
  """The simple commands of some lines of shell, as lists of words."""
  lexer = shlex.shlex(
    "\n".join(re.sub(r"(^|\s)#.*", "", line) for line in shell.replace("\\\n", " ").split("\n")),
    posix=True,
    punctuation_chars="();<>|&\n",
  )
  lexer.whitespace = " \t"
  lexer.whitespace_split = True
  lexer.commenters = ""
  commands, words, redirected = [], [], False
  for token in lexer:
    if set(token) <= set("<>"):
      redirected = True
    elif set(token) <= set("();|&\n"):
      commands.append(words)
      words, redirected = [], False
    elif not redirected:
      words.append(token)
  return [as_module(command) for command in [*commands, words] if command]


def as_module(words):
  """A command of the front, by itself or by the script, as that of its module."""
  while re.fullmatch(r"[A-Z_]+=.*", words[0]):
    words = words[1:]
  if words[0] not in ("./run_experiments.sh", "superquantile"):
    return words
  if words[1:2] in (["--version"], ["help"]):
    return ["true"]
  if words[0] == "./run_experiments.sh" and (words[1:2] or [""])[0] not in OF_THE_SCRIPT:
    return words
  module = front.COMMANDS[words[1]].module.removesuffix(".__main__")
  return [PYTHON, "-m", module, *words[2:]]


def commands(page):
  """Yields the commands of a page as lists of words, in their order, and those within its text."""
  text = page.read_text(encoding="utf-8")
  blocks = [content for language, content, _ in fenced(text) if language == "sh"]
  inline = re.findall(r"`((?:\./run_|\.venv/bin/|[A-Z]+=\S+ \./)[^`]*)`", text)
  for shell in [*blocks, *indented(text), *(" ".join(code.split()) for code in inline)]:
    yield from split(shell)
