"""Text as people are shown it."""

from __future__ import annotations

import pytest

from runner.records.shown_text import shown

ORDINARY = [
    "plain text\n\twith lines",
    "Payez 10\u00a0000,00\u00a0€ aujourd'hui\u202f!",
    "می\u200cخواهم کتاب\u200cها را ببینم",  # noqa: RUF001 - Persian
    "お客様\u3000各位、葛\U000e0100飾区の辻\U000e0101様",
    "👩\u200d💻 ❤\ufe0f ☎\ufe0e 1\ufe0f\u20e3 👨🏽\u200d👩🏽\u200d👧 🏳\ufe0f\u200d🌈 ❤\ufe0f\u200d🔥",
    "क्\u200dष श्री क्\u200cष",
    "Tiếng Việt, Việ\u0323t, שָׁלוֹם, ก็ที่",
    "한국어 и русский, Ελληνικά",
    "счёт в JSONом и SMSки, оса, ΔE, λx, Ωm, Ünal-Ёлкин",  # noqa: RUF001 - Russian and formulas
]

HIDING = {
    "a sentence behind a letter": "a" + "".join(chr(0xE0100 + code) for code in b"to mallory"),
    "two selectors on an emoji": "❤\ufe0f\ufe0f",
    "two selectors on an ideograph": "葛\U000e0100\U000e0101",
    "a selector on a letter": "IBAN\ufe0f",
    "a sentence behind ideographs": "".join(f"葛{chr(0xE0100 + code)}" for code in b"mallory"),
    "a blank note": "pay\U0001d159",
    "a blank sign of another script": "pay\u2d7f\U0001107f\U00016fe4",
    "an object that is not there": "pay\ufffc",
    "a Hangul filler": "pay\u3164",
    "another Hangul filler": "pay\u115f\u1160\uffa0",
    "a blank braille sign": "\u2800",
    "a grapheme joiner": "a\u034fb",
    "a Mongolian selector": "a\u180bb",
    "tags": "🏴" + "".join(chr(0xE0000 + code) for code in b"pay"),
    "joiners between letters": "pa\u200dy \u200c",
    "a right-to-left override": "10\u202e00",
    "a run of wide spaces": "a\u3000\u3000\u3000b",
    "a stack of marks": "a" + 12 * "\u0301",
    "a soft hyphen": "pay\u00adment",
    "half a pair": "\ud800",
    "a Cyrillic letter in a name": "\u0430mount",
    "Latin letters among Cyrillic ones": "\u0440\u0430\u0443\u0440\u0430l",
    "a Greek letter in capitals": "IB\u0391N",
    "a Cyrillic segment of an identifier": "total_\u0430",
    "an Armenian letter": "n\u0578te",
}


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_shown_as_it_is(text):
    """Languages, spaces and emoji as people write them have no escapes."""
    assert shown(text) == text


@pytest.mark.parametrize("text", HIDING.values(), ids=HIDING)
def test_what_would_be_hidden_is_shown(text):
    """Selectors, blank letters, twins of Latin letters, and what turns text around are escapes."""
    written = shown(text)

    assert "\\" in written
    assert shown(written) == written
    assert written.encode("raw_unicode_escape").decode("unicode_escape") == text


def test_a_blank_letter_hides_no_look_alike():
    """A filler beside a word of two scripts belongs to neither."""
    assert shown("\u0430mount\u3164") == r"\u0430mount\u3164"
