"""Text as people are shown it: nothing in it is hidden, and ordinary text of any language stays readable."""

from __future__ import annotations

import unicodedata

LINE = "\n\t"

BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
"""Letters, signs and marks that show nothing, though Unicode calls them printable."""

MOST_MARKS = 4
"""Combining marks on one letter; more are no language, and cover the lines around."""

NON_JOINER, JOINER, KEYCAP = "\u200c", "\u200d", "\u20e3"

JOINED = ((0x600, 0xE00), (0x1000, 0x10A0), (0x1780, 0x1800), (0xFB50, 0xFE00), (0xFE70, 0xFEFF))
"""Scripts whose letters join: Arabic and its relatives, those of India, Burmese, Khmer."""

SIGNS = frozenset("‼⁉〰〽")
"""Punctuation that is emoji, too."""

IDEOGRAPHS = ((0x3400, 0xA000), (0xF900, 0xFB00), (0x20000, 0x40000))


def shown(text: str) -> str:
    """Return text with everything that would not be seen, or would turn text around, as escapes.

    Ordinary use stays: one wide or unbreakable space, the joiners of scripts and emoji that need them, the
    variants of emoji and of ideographs.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char in LINE or _is_seen(text, number) else _escape(char)
        for number, char in enumerate(text)
    )


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _is_seen(text: str, number: int) -> bool:
    char, before, after = text[number], text[number - 1 : number], text[number + 1 : number + 2]
    if char.isascii():
        return char.isprintable()
    if char in BLANK:
        return False
    if char in {NON_JOINER, JOINER}:
        is_word = _within(before, JOINED) and _within(after, JOINED)
        return is_word or (char == JOINER and _is_emoji_joint(before, after))
    if "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef":
        is_sign = char >= "\ufe0e" and (
            _kind(before) in {"So", "Sm"} or before in SIGNS or after == KEYCAP
        )
        return _within(before, IDEOGRAPHS) or (char <= "\ufe0f" and is_sign)
    match unicodedata.category(char):
        case "Zs":
            return bool(before) and not before.isspace()
        case "Mn" | "Me":
            marks = text[max(0, number - MOST_MARKS) : number]
            return len(marks) < MOST_MARKS or not all(_kind(mark) in {"Mn", "Me"} for mark in marks)
    return char.isprintable()


def _is_emoji_joint(before: str, after: str) -> bool:
    return (before == "\ufe0f" or _kind(before) in {"So", "Sk"}) and _kind(after) in {"So", "Sm"}


def _kind(char: str) -> str:
    return unicodedata.category(char) if char else ""


def _within(char: str, ranges: tuple[tuple[int, int], ...]) -> bool:
    return bool(char) and any(first <= ord(char) < end for first, end in ranges)
