from roll.utils.text import middle_left_out, visible


def test_what_steers_a_terminal_turns_the_writing_or_fits_no_file_is_spelled_out() -> None:
    assert visible("\x1b[2J\r\x9b1m\x7f") == "\\x1b[2J\\x0d\\x9b1m\\x7f"
    assert visible("a\u202eb\u2066c\u200f\u2028") == "a\\u202eb\\u2066c\\u200f\\u2028"
    assert visible("\ud800 \U000e0041") == "\\ud800 \\U000e0041"


def test_ordinary_text_of_every_language_stays_as_it_is() -> None:
    text = "tab\there\nline, zażółć, 漢字, עברית, العربية, \u200bfamily 👨\u200d👩\u200d👧, 1 ≤ 2"
    assert visible(text) == text


def test_a_long_text_keeps_its_ends() -> None:
    assert middle_left_out("abcdef", 6) == "abcdef"
    assert middle_left_out("abcdefg", 4) == "ab\n[... 3 characters left out ...]\nfg"
