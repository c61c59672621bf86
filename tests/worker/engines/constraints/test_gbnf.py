"""Grammars of llama.cpp's form in Lark's words: what they allow stays as it was, and their size has bounds."""

from __future__ import annotations

import pytest
from llguidance import LLMatcher, LLTokenizer

from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engines.constraints.gbnf import MOST_LEVELS, to_lark

JSON = r"""root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
# Optional space
ws ::= | " " | "\n" [ \t]{0,20}
"""
ARITHMETIC = """root ::= (expr "=" term ";")+
expr ::= term ([-+*/] term)*
term ::= num | "(" expr ")"
num ::= [0-9]+
"""


def allows(grammar: str, text: str) -> bool:
    """Whether an answer may be `text`, whole."""
    matcher = LLMatcher(LLTokenizer("byte"), f"%llguidance {{}}\n{to_lark(grammar)}")
    assert not matcher.is_error(), matcher.get_error()
    taken = all(matcher.consume_token(byte) for byte in text.encode())
    return taken and bool(matcher.is_accepting())


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= "yes" | "no"', ["yes", "no"], ["ye", "yesno", "maybe"]),
        ('root ::= "a" |\n  "b"\n', ["a", "b"], ["c"]),
        ('root ::= word (" " word){1,2}\nword ::= [a-c]+', ["a b", "abc a c"], ["a", "a b c a", "d e"]),
        ('root ::= [^a-c\\]"]{2}', ["xy", "é9"], ["xa", "x", 'x"', "x]"]),
        ('root ::= "\\x41\\u00e9\\U0001F99C\\t\\"\\\\"', ['Aé🦜\t"\\'], ["A"]),
        ('root ::= . "x"', ["\nx", "🦜x"], ["x"]),
        ('root ::= "a"? "b"* "c"+ "d"{2} "e"{1,}', ["cdde", "abbccddee"], ["dde", "cde"]),
        ('root ::= "a"{0} "b"{0,0} "c"', ["c"], ["ac", "bc"]),
        ('root ::= a-rule "x"\na-rule ::= "" | "q"', ["x", "qx"], ["q"]),
        ('root ::= list # a comment\nlist ::= "[" (list ("," list)*)? "]"', ["[]", "[[],[[]]]"], ["[", "[,]"]),
        ('root ::= "a" root "b" | "c"', ["c", "aacbb"], ["aacb"]),
        (JSON, ["{}", '{"a": [1, -2.5e3, {"b":true}], "é\\n": null}'], ["{", '{"a"}', "[1]", '{"a": 01}']),
        (ARITHMETIC, ["1+(2*3)=7;", "1=1;2=2;"], ["1+=1;", "()=1;"]),
    ],
)
def test_what_a_grammar_allows(grammar: str, good: list[str], bad: list[str]) -> None:
    """As llama.cpp reads it, with each of its forms."""
    assert [text for text in good if not allows(grammar, text)] == []
    assert [text for text in bad if allows(grammar, text)] == []


DEEP = MOST_LEVELS + 1


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        ("root ::= " + "(" * 50_000 + '"a"' + ")" * 50_000, "parentheses within each other"),
        ("root ::= " + "(" * DEEP + '"a"' + ")*" * DEEP, "parentheses within each other"),
        ("root ::= r0\n" + "\n".join(f"r{n} ::= r{n + 1}" for n in range(DEEP)) + f'\nr{DEEP} ::= "a"', "levels"),
        ("root ::= r0\n" + "\n".join(f"r{n} ::= r{n + 1}" for n in range(500)) + '\nr500 ::= "a" r0', "come back"),
        ('root ::= (("a"{1000}){1000}){1000}', "repetitions written out"),
        ('root ::= "a"{2001}', "a repetition over 2000"),
        ('root ::= "a"{3,2}', "whose end is before its beginning"),
        ('root ::= "a"{x}', "a repetition that is none of"),
        ('root ::= "a" {', "a repetition that is none of"),
        ("root ::= missing", "needs 'missing'"),
        ('other ::= "a"', "no rule 'root'"),
        ('root ::= "a', "the end of the text"),
        ("root ::= [a", "the end of the text"),
        ("root ::= []", "an empty set"),
        ("root ::= [z-a]", "whose end is before its beginning"),
        ('root ::= "\\ud800"', "no character"),
        ('root ::= "\\q"', "an escape that is unknown"),
        ('root ::= ("a"', "no \\)"),
        ('root ::= "a")', "a line that doesn't end here"),
        ("root", "no ::="),
        ("::=", "no name of a rule"),
    ],
)
def test_what_is_no_grammar(grammar: str, says: str) -> None:
    """Refused with a sentence of bounded length, however long it is."""
    with pytest.raises(InvalidArgument, match=says) as refused:
        to_lark(grammar)
    assert len(refused.value.message) < 300
