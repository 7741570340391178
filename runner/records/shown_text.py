"""Text as it is shown to people: nothing is hidden; ordinary text in any language is readable."""

from __future__ import annotations

import re
import unicodedata

LINE = "\n\t"

BLANK = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u2d7f\u3164\uffa0\ufffc"
    "\U0001107f\U00013441\U00013442\U00016fe4\U0001d159"
)
"""Letters, signs and marks that are invisible although Unicode calls them printable."""

MOST_MARKS = 4
"""The most combining marks on one letter; no language uses more, and more cover nearby lines."""

TWINS = frozenset(
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03b1\u03b3\u03b9\u03bd\u03bf"
    "\u03c1\u03c5\u03f2\u03f3\u0405\u0406\u0408\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0423\u0425"
    "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0455\u0456\u0458\u0475\u04ae\u04af\u04bb\u04cf\u0501\u050c\u051b\u051d"
    "\u0570\u0578\u057d\u0581\u0585"
)
"""Greek, Cyrillic and Armenian letters that look like a Latin letter."""

WORD = re.compile(r"\w+")

NON_JOINER = "\u200c"
JOINER = "\u200d"
KEYCAP = "\u20e3"

JOINED = (
    (0x600, 0xE00),
    (0x1000, 0x10A0),
    (0x1780, 0x1800),
    (0xFB50, 0xFE00),
    (0xFE70, 0xFEFF),
)
"""Scripts whose letters join: Arabic and its relatives, Indian scripts, Burmese, Khmer."""

SIGNS = frozenset("‼⁉〰〽")
"""Punctuation that is also emoji."""

VARIANTS = ((0xFE00, 0xFE03), (0xE0100, 0xE0120))
"""Selectors of variants of ideographs; each of the other selectors could hide a byte."""

IDEOGRAPHS = ((0x3400, 0xA000), (0xF900, 0xFB00), (0x20000, 0x40000))


def shown(text: str) -> str:
    """Return text with escapes for all characters that are invisible or reverse text.

    Ordinary uses stay: one wide or unbreakable space, the joiners of scripts and emoji that need
    them, the variants of emoji and ideographs. In a word that looks Latin, letters of other scripts
    become escapes; a word of one script stays, and so does a word that visibly mixes scripts.
    """
    if text.isascii() and text.isprintable():
        return text
    if not TWINS.isdisjoint(text):
        text = WORD.sub(_without_twins, text)
    return "".join(
        char if char in LINE or _is_seen(text, number) else _escape(char)
        for number, char in enumerate(text)
    )


def _without_twins(match: re.Match[str]) -> str:
    text = match[0]
    letters = [char for char in text if char.isalpha() and char not in BLANK]
    foreign = {char for char in letters if "LATIN" not in unicodedata.name(char, "")}
    if foreign and foreign <= TWINS and len(foreign) < len(set(letters)):
        return "".join(_escape(char) if char in foreign else char for char in text)
    return text


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _is_seen(text: str, number: int) -> bool:
    char = text[number]
    previous = text[number - 1 : number]
    following = text[number + 1 : number + 2]
    if char.isascii():
        return char.isprintable()
    if char in BLANK:
        return False
    if char in {NON_JOINER, JOINER}:
        is_word = _within(previous, JOINED) and _within(following, JOINED)
        return is_word or (char == JOINER and _is_emoji_joint(previous, following))
    if "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef":
        is_sign = char >= "\ufe0e" and (
            _kind(previous) in {"So", "Sm"} or previous in SIGNS or following == KEYCAP
        )
        is_variant = _within(previous, IDEOGRAPHS) and _within(char, VARIANTS)
        return is_variant or (char <= "\ufe0f" and is_sign)
    match unicodedata.category(char):
        case "Zs":
            return bool(previous) and not previous.isspace()
        case "Mn" | "Me":
            marks = text[max(0, number - MOST_MARKS) : number]
            return len(marks) < MOST_MARKS or not all(
                _kind(mark) in {"Mn", "Me"} for mark in marks
            )
    return char.isprintable()


def _is_emoji_joint(previous: str, following: str) -> bool:
    return (previous == "\ufe0f" or _kind(previous) in {"So", "Sk"}) and _kind(following) in {
        "So",
        "Sm",
    }


def _kind(char: str) -> str:
    return unicodedata.category(char) if char else ""


def _within(char: str, ranges: tuple[tuple[int, int], ...]) -> bool:
    return bool(char) and any(start <= ord(char) < end for start, end in ranges)
