"""RTF: what stands on the page is in the text, and what does not is not, whichever program wrote it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.documents import rtf_text

FONTS = rb"{\fonttbl{\f0\fnil\fcharset0 Calibri;}{\f1\fnil\fcharset204 Cyr;}{\f2\fnil\fcharset128 Mincho;}}"


def text_of(body: bytes, encoding: str | None = None) -> str:
    return rtf_text.extract(rb"{\rtf1\ansi\ansicpg1252\deff0" + FONTS + body + b"}", encoding)[0]


PAGES: dict[str, tuple[bytes, str]] = {
    "an emoji in two halves": (rb"Thanks \u-10179?\u-8704? Ann", "Thanks \U0001f600 Ann"),
    "half an emoji": (rb"a\u-10179?b", "a\ufffdb"),
    "two characters in place of one": (rb"\uc2 40 \u8364\'80\'80.", "40 \u20ac."),
    "a code page for each font": (rb"\f1\'cf\'f0\'e8\f0  \'e9\f2 \'93\'fa", "\u041f\u0440\u0438 \u00e9\u65e5"),
    "a byte that its font's code page has not": (rb"\f2\'96\f0  a", "\u2013 a"),
    "a byte that no code page has": (rb"a\'81b", "a\ufffdb"),
    "a deletion and an insertion": (rb"costs {\deleted\revauthdel1 100}{\revised 200} or \deleted 3\deleted0 4.",
                                    "costs 200 or 4."),
    "hidden text": (rb"seen{\v  gone {\b too}}, \v gone\v0 seen \v gone \plain again", "seen, seen again"),
    "a deletion up to plain": (rb"\deleted gone \plain here", "here"),
    "a star inside a group": (rb"Pay {\loch\f0\*\cs7 all} now", "Pay all now"),
    "a group that nobody knows": (rb"a{\*\foo b{c}}d{\foo e}", "ade"),
    "a blank before what a group is": (b"a{ \\fonttbl {\\f9 Gone;}}{\\*\n\\foo gone}b", "a b"),
    "a text box": (rb"before{\shp{\*\shpinst\shptop0{\sp{\sn t}{\sv 2}}{\shptxt\pard In a box.\par}}"
                   rb"{\shprslt{\*\do In a box.}}}\par after", "before\nIn a box.\n\nafter"),
    "an old text box": (rb"a{\*\do\dobxcolumn{\dptxbxtext\pard b\par}}c", "a\nb\nc"),
    "headers and footers, each once": (rb"{\header H\par}{\headerf H\par}{\footer F\par}body", "H\nbody\nF"),
    "a footnote": (rb"So{\super\chftn{\footnote\pard\chftn  as agreed}} it is.",
                   "So[^1] it is.\n[^1]: as agreed"),
    "an endnote behind a footnote": (rb"a{\footnote b}c{\footnote\ftnalt d}", "a[^1]c[^e1]\n[^1]: b\n[^e1]: d"),
    "a comment with its author": (rb"a{\*\atnid X}{\*\atnauthor Ann}\chatn{\*\annotation\pard why?}b",
                                  "a[comment 1]b\n[comment 1]: Ann: why?"),
    "a comment without": (rb"a{\*\annotation b}", "a[comment 1]\n[comment 1]: b"),
    "superscripts and subscripts": (rb"1,200{\super 3} m\super 2\nosupersub , CO{\sub 2}, 4{\super th}, "
                                    rb"10{\super 6.5}",
                                    "1,200\u00b3 m\u00b2, CO\u2082, 4th, 10^6.5"),
    "a link": (rb'{\field{\*\fldinst{HYPERLINK "http://a.example"}}{\fldrslt here}}.', 'here("http://a.example").'),
    "a field's result": (rb"{\field{\*\fldinst PAGE }{\fldrslt 7}}", "7"),
    "list numbers": (rb"{\listtext 1.\tab}one\par{\pntext\'95\tab}two{\*\pn{\pntxta .}}", "1.\tone\n\u2022\ttwo"),
    "a table": (rb"\trowd\cellx9 a\cell b\cell\row c", "a|b|\nc"),
    "pictures and what is in them": (rb"a{\*\shppict{\pict\pngblip\bin3 }}{}}{\nonshppict{\pict 00ff}}c", "ac"),
    "bytes that are counted": (b"a{\\pict\\bin4 }}{{}b", "ab"),
    "an embedded object": (rb"a{\object\objemb{\*\objclass X}{\*\objdata 01}{\result shown}}b", "ashownb"),
    "text in two forms": (rb"{\upr{caf?}{\*\ud{caf\u233 ?}}}", "caf\u00e9"),
    "an equation": (rb"{\mmath{\*\moMath{\msSup{\msSupPr{\mctrlPr x}}{\me{\mr a}}{\msup{\mr 2}}}}"
                    rb"{\mmathPict{\pict 0}}}",
                    "a^2"),
    "what is behind the document": (b"a}garbage{b", "a"),
    "a document that is cut off": (b"a{\\b b", "ab"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "text"), PAGES.values(), ids=PAGES.keys())
def test_a_page_is_read_as_it_is_seen(body: bytes, text: str) -> None:
    assert text_of(body) == text


def test_a_code_page_that_the_user_names_holds_where_the_file_names_none() -> None:
    assert rtf_text.extract(rb"{\rtf1 \'e4}", "cp1251")[0] == "\u0434"
    assert rtf_text.extract(rb"{\rtf1\ansicpg1252 \'e4}", "cp1251")[0] == "\u00e4"


_WORDS = [
    *(rb"{ } \* \u-10179 \u \uc0 \uc-3 \'e4 \super \deleted \plain \footnote \ftnalt \annotation \atnauthor \shp "
      rb"\upr \shptxt \ud \result \field \fldinst \fonttbl \f1 \fcharset128 \cpg9999999999 \header \bin2 \bin-9 "
      rb"\msup \par \ansicpg-1 \object").split(),
    rb'HYPERLINK "x"', b"a\xe4", b"\n", b"\\", b" ",
]  # fmt: skip


@given(st.lists(st.sampled_from(_WORDS), max_size=40).map(b"".join))
def test_no_order_of_words_ends_in_an_error(body: bytes) -> None:
    text_of(body).encode()
