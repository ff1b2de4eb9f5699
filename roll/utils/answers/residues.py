r"""Residues: 5 \pmod 7, x \equiv 5 (mod 7), 3^{10} \equiv 4 \pmod 5, 12 \bmod 7."""

import re
from dataclasses import dataclass

_MOD_AS_TEXT = re.compile(r"\\(?:text|textrm|mathrm|operatorname|mathop|mbox)\s*\{\s*(mod|modulo)\s*\}")
_BLANK = r"(?:\\[,;:! ]|\\q?quad\b|[\s~])*"
_WITH_MODULUS = re.compile(
    rf"(?P<left>.*?){_BLANK}(?:\\pmod|(?P<bracket>\(){_BLANK}(?:\\[bp]?mod|mod(?:ulo)?\b)|\\b?mod|(?<![A-Za-z])mod(?:ulo)?\b)"
    rf"{_BLANK}(?P<modulus>\{{[^{{}}]*\}}|[^(){{}},;=]+?){_BLANK}(?(bracket)\)|)",
    re.DOTALL,
)
_SEVERAL_OR_NONE = re.compile(r"mod(?:ulo)?\b|\\n(?:ot|eq?|cong)\b|\\not|!=|\u2260|\u2262|\bnot\b")
_SIGN = re.compile(r"\\equiv|\u2261|=")
_INTEGER = re.compile(r"[-+]?\d{1,2000}")
_POWER = re.compile(r"(\d{1,2000})(?:\s*(?:\^|\*\*)\s*(?:\{\s*(\d{1,2000})\s*\}|(\d{1,2000})))?")


@dataclass(frozen=True)
class Residue:
    r"""Residue behind the last \equiv, and its modulus. `is_class`: a class of integers (\pmod), not the operation
    \bmod. `is_false`: an integer of the chain is in another class."""

    value: str
    modulus: str
    is_class: bool
    is_false: bool = False

    def reduced(self) -> str:
        """The least of its class, if it is an integer."""
        modulus = self.number()
        return str(int(self.value) % modulus) if modulus and _INTEGER.fullmatch(self.value) else self.value

    def number(self) -> int | None:
        return int(self.modulus) if _INTEGER.fullmatch(self.modulus) and int(self.modulus) > 0 else None


def read_residue(text: str) -> Residue | None:
    r"""None for what ends in no modulus, or names several. Example: r"x \equiv 5 \pmod{7}" -> 5, modulus 7."""
    match = _WITH_MODULUS.fullmatch(_MOD_AS_TEXT.sub(r" \1 ", text).strip(" $"))
    if match is None or not match["left"].strip() or _SEVERAL_OR_NONE.search(match["left"]):
        return None
    parts = [part.strip() for part in _SIGN.split(match["left"]) if part.strip()]
    modulus = match["modulus"].strip("{} ")
    is_class = match["bracket"] is not None or r"\pmod" in text or len(parts) > 1
    residue = Residue(parts[-1], modulus, is_class) if parts else None
    number = residue.number() if residue else None
    if residue is None or number is None:
        return residue
    classes = {_modulo(part, number) for part in parts} - {None}
    return Residue(residue.value, modulus, is_class, is_false=len(classes) > 1)


def as_residues(truth: str, answer: str) -> tuple[str, str]:
    r"""Return the two texts to compare if the truth or the answer has a modulus; the answer is "" if it must be wrong.

    Both have one: it must be the same, and the residues of one class. The answer alone: it must be the very number, or
    what \bmod makes of it. The truth alone: the residue is enough.

    Examples: (r"5 \pmod 7", r"12 \pmod 7") -> ("5", "5"), ("5", r"12 \pmod 7") -> ("5", "12"), ("5", r"12 \bmod 7") ->
    ("5", "5"), (r"5 \pmod 7", r"5 \pmod 8") -> (r"5 \pmod 7", "")
    """
    wanted, answered = read_residue(truth), read_residue(answer)
    if answered is not None and answered.is_false:
        return truth, ""
    if wanted is not None and answered is not None:
        if "".join(wanted.modulus.split()) != "".join(answered.modulus.split()):
            return truth, ""
        return wanted.reduced(), answered.reduced()
    if answered is not None and answered.number():
        return truth, answered.value if answered.is_class else answered.reduced()
    if wanted is not None and wanted.number():
        return wanted.value if wanted.is_class else wanted.reduced(), answer
    return truth, answer


def _modulo(text: str, modulus: int) -> int | None:
    """The class of a sum of products of powers of integers; None for all else."""
    total = 0
    for sign, term in re.findall(r"([-+]?)([^-+]+)", re.sub(r"\s+", " ", text)):
        product = 1
        for factor in re.split(r"\\cdot|\\times|\*(?!\*)", term):
            power = _POWER.fullmatch(factor.strip())
            if power is None:
                return None
            product = product * pow(int(power[1]), int(power[2] or power[3] or 1), modulus) % modulus
        total += -product if sign == "-" else product
    return total % modulus
