"""Sentences as NLTK's English Punkt counts them (Kiss and Strunk 2006, Computational Linguistics 32:4), without NLTK
and without its data.

The procedure is Punkt's: where a sentence may end, which tokens stand around the mark, what an abbreviation, an
ellipsis, an initial or a number before it changes, and that closing quotes and brackets belong to what is before them.
Of its trained tables (of the Wall Street Journal) the abbreviations, the words that begin sentences and those behind
numbers stand here as lists. How each of 20000 words is spelled where is replaced by lists of everyday words of our own,
and by the endings that everyday words have and names have not.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

_NO_WORD = r"[)\";}\]*:@'({\[!?]"
_POTENTIAL_END = re.compile(rf"[.?!](?=(?P<after>{_NO_WORD}|\s+(?P<following>\S+)))")
_SEVERAL = r"(?:-{2,}|\.{2,}|(?:\.\s){2,}\.)"
_TOKEN = re.compile(
    rf"{_SEVERAL}|(?=[^(\"`{{\[:;&#*@)}}\]\-,])\S+?(?=\s|$|{_NO_WORD}|{_SEVERAL}|,(?=$|\s|{_NO_WORD}|{_SEVERAL}))|\S"
)
_CLOSING = re.compile(r"[\"')\]}]+?(?:\s+|(?=--)|$)")
_NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*\.?")
_INITIAL = re.compile(r"[^\W\d]\.")
_SPACE = re.compile(r"[ \t\n\r\x0b\x0c]")
_MARKS = frozenset(";:,.!?")
_ENDS = frozenset(".?!")
_TITLES = "mr mrs ms messrs dr prof sr jr st gen col maj lt adm sen rep reps ph.d m.b.a"
_FIRMS = "inc ltd co corp bros cos cie s.a s.p.a n.v"
_TIMES = "jan feb aug sep sept oct nov dec tues wed fri yr a.m p.m a.d"
_STATES = "ala ariz calif colo conn fla ga ill kan ky mich minn nev okla ore pa tenn va vt wash wis w.va"
_PLACES = "ave ft ct sw u.s u.s.a u.s.s.r u.k u.n d.c l.a n.c n.d n.h n.j n.m n.y r.i s.c"
_INITIALS = (
    "a.c a.g a.h a.s b.f b.v d.h d.w e.f e.h e.l e.m f.g f.j g.d g.f g.k h.c h.f h.m j.b j.c j.j j.k j.p j.r l.f l.p "
    "m.j r.a r.h r.j r.k r.t s.g s.s t.j w.c w.r w.w"
)
FIRST_NAMES = frozenset(_INITIALS.split())
_LETTERS = "c d e f g h k l m n p r s t v w"
_OTHERS = "vs chg mg ok c.v"
ABBREVIATIONS = frozenset(" ".join((_TITLES, _FIRMS, _TIMES, _STATES, _PLACES, _INITIALS, _LETTERS, _OTHERS)).split())
"""Abbreviations of Punkt's English tables, in small letters: behind P.S., e.g., etc. and A. a sentence may end."""
_STARTERS = (
    "the he it they i this these there if in when while since although though however moreover nevertheless "
    "nonetheless meanwhile indeed instead separately similarly according thus so yet but nor most many some both among "
    "under despite even sales"
)
STARTERS = frozenset(_STARTERS.split())
"""Words that begin a sentence also behind an abbreviation."""
_TITLES_OF_LISTS = (
    "abreast business commodities corrections credit dividend financing insider international leisure letters notable "
    "pepper review who"
)
TITLES_OF_LISTS = frozenset(_TITLES_OF_LISTS.split())
"""Words that go on behind a number with a dot: "2. Review the plan" has one sentence."""
_SMALL = (
    "her your here nor so yet without above along behind beneath between beyond except inside into onto through "
    "throughout upon within were being does yes either neither such same very always sometimes still already soon "
    "tomorrow yesterday whom which unless though whereas whether therefore thus hence moreover furthermore finally "
    "instead indeed otherwise please try remember consider choose ask think someone nothing program question number "
    "mother fact lot right eye friend hour member car team minute idea body door person result morning girl guy "
    "moment teacher wait arrive visitors guests participants doors lunch dress wear parking registration drinks "
    "attendance admission anything anyone him us them hers ours mine whenever wherever almost simply certainly "
    "probably possibly eventually suddenly slowly early earlier prior following regarding concerning considering "
    "given thanks sorry okay everyday forget enjoy relax hurry believe hate wish prefer suggest recommend explain "
    "describe discuss compare contrast list select pick draw paint sing drink walk fly swim climb sit stand lie "
    "decrease improve enhance ensure provide allow enable require include contain involve prevent protect spend earn "
    "lose win achieve attain accomplish complete finish proceed remain enter send receive deliver carry pull lift "
    "throw kick hold grab mix boil cool freeze fold whole entire empty dirty tall tiny huge giant wide narrow thick "
    "thin heavy dark bright loud warm hot cold wet rain snow cloud trees flower flowers animals animal birds fish "
    "dogs horse path ocean kitchen bedroom window floor roof chair bed pen page pages words sentence songs sport "
    "teams player winner kids boy boys girls brother sister son daughter neighbor neighbors doctor engineer artist "
    "writer author prince soldier officer employers leaders researchers experts critics fans readers"
)
SELDOM_CAPITALIZED = frozenset(_SMALL.split())
_COMMON = (
    "the a an he she it they we you its our my their this that these those or for of to on at by from with about "
    "across after against around as before during near off out outside over past toward until up is are was be do did "
    "have has had can could will would should may might must no none all each every any much more most many some few "
    "several other both another own only just also too now second third then once again never often usually first "
    "next last one two three who what where why how because than like well perhaps maybe let make use add keep take "
    "get go see read write find know everyone people time in if when while since although there and but however even "
    "under among despite start begin end stop set put build plan work study learn teach help show tell answer give "
    "bring call change play move live happen support check test run open close return follow lead increase reduce cut "
    "place serve main general basic late high low new old good bad great small large long short key role type form "
    "part point case cause effect cost value price growth market impact need goal purpose reason risk method process "
    "approach model design data research training health food water energy power history culture language art music "
    "family home house school student children life death love hope fear war peace background summary resources "
    "contact examples benefits features steps tips ideas goals ways types sources limit limits total minimal maximum "
    "minimum average natural social personal professional technical financial political economic environmental "
    "digital human public private local global modern traditional physical mental join meet students dinner breakfast "
    "tickets everything somebody nobody everybody his me whatever rather nearly quite really clearly obviously "
    "actually basically generally quickly later according due sure today expect feel want propose identify name dance "
    "eat sleep rest drive ride fall rise grow raise lower offer avoid save pay buy sell gain reach continue stay "
    "leave exit ship push drop catch hit touch heat clean dry iron half full young big light quiet soft hard wind sun "
    "tree dog cat cats homes street road lake sea mountain beach forest garden wall table book books paper letter "
    "word story song movie film game games ball players coach man men woman women parents father uncle friends "
    "teachers doctors nurse lawyer workers employees customers clients users managers scientists"
)
COMMON = frozenset(_COMMON.split())
"""Words that are no names, capitalized or not."""
_COMMON_ENDING = re.compile(
    r".{3,}(?:[ts]ions?|ments?|ity|ities|ness|ing|able|ible|ive|ous|ful|less|ed|ly|ized?|ate|ance)"
)


@dataclass
class _Token:
    text: str
    ends: bool = False  # the sentence
    abbreviates: bool = False

    @property
    def kind(self) -> str:
        lower = self.text.lower()
        if _NUMBER.fullmatch(lower):
            return "##number##"
        return lower[:-1] if len(lower) > 1 and lower.endswith(".") else lower


def count_sentences(text: str) -> int:
    """Example: "Dr. Smith came at 5 p.m. today. Why? He had 3.5 hours." has 3, "1. One\\n2. Two" has 3."""
    breaks = list(_breaks(text))
    starts, ends = [0, *(start for _, start in breaks)], [*(end for end, _ in breaks), len(text.rstrip())]
    count, moved = 0, 0
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        is_last = number == len(breaks)
        closing = None if is_last else _CLOSING.match(text[starts[number + 1] : ends[number + 1]])
        count += closing is not None or start + moved < end
        moved = 0 if closing is None else closing.end()
    return count


def _breaks(text: str) -> Iterator[tuple[int, int]]:
    """Positions (end of a sentence, start of the next)."""
    for match, context in _contexts(text):
        if _has_break(context):
            following = match.start("following")
            yield match.end(), match.end() if following < 0 else following


def _contexts(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Marks that may end a sentence, with the word before each and what follows. Of several marks at one word the last
    counts."""
    previous: re.Match[str] | None = None
    begin = end = 0  # of the word before the previous mark
    for match in _POTENTIAL_END.finditer(text):
        blanks = list(_SPACE.finditer(text, end, match.start()))
        word = blanks[-1].end() if blanks and blanks[-1].start() > end else begin
        if previous is not None and end <= word:
            yield previous, text[begin:end] + previous[0] + previous["after"]
        previous, begin, end = match, word, match.start()
    if previous is not None:
        yield previous, text[begin:end] + previous[0] + previous["after"]


def _has_break(context: str) -> bool:
    tokens = [_Token(match) for match in _TOKEN.findall(context)]
    for token in tokens:
        _annotate(token)
    for token, following in pairwise(tokens):
        if token.text.endswith("."):
            _revise(token, following)
    return any(token.ends for token in tokens[:-1])


def _annotate(token: _Token) -> None:
    """Annotates a token by its own text only."""
    if token.text in _ENDS:
        token.ends = True
    elif token.text.endswith(".") and not token.text.endswith(".."):
        word = token.text[:-1].lower()
        token.abbreviates = bool({word, word.rpartition("-")[2]} & ABBREVIATIONS)
        token.ends = not token.abbreviates


def _revise(token: _Token, following: _Token) -> None:
    """Revises a token's annotation by the token behind it."""
    word, is_capital = following.kind, following.text[:1].isupper()
    has_common_ending = _COMMON_ENDING.fullmatch(word) is not None
    is_initial = _INITIAL.fullmatch(token.text) is not None
    if token.kind == "##number##" and word in TITLES_OF_LISTS:
        token.ends = False
    elif (token.abbreviates or token.text.endswith("..")) and not is_initial:
        begins = word in SELDOM_CAPITALIZED or word in STARTERS
        is_surname = token.kind in FIRST_NAMES
        token.ends = is_capital and (begins or (has_common_ending and word not in COMMON and not is_surname))
    elif is_initial or token.kind == "##number##":
        continues = following.text in _MARKS or following.text[:1].islower()
        is_word = (
            has_common_ending or word in SELDOM_CAPITALIZED or not COMMON.isdisjoint((word, word.removesuffix("s")))
        )
        if continues or (is_initial and is_capital and not is_word):
            token.ends = False
