"""What papers print for each judged set, to stand beside our own numbers; coefficients times 100, accuracies
in %.

Values that a paper cites from elsewhere are left out where their protocol is another one. `CIDEr` of the
papers is what pycocoevalcap computes, CIDEr-D.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

PACS = "Sarto et al., CVPR 2023 (PAC-S)"
PACS_README = "the README of PAC-S's repository"
HICES = "Zeng et al., ACM MM 2024 (HICE-S)"
FLEUR = "Lee et al., ACL 2024 (FLEUR)"
UMIC = "Lee et al., ACL 2021 (UMIC)"
VILBERT = "Lee et al., Eval4NLP 2020 (ViLBERTScore)"
_ALIASES = {
    "CIDEr": "CIDEr-D",
    "ROUGE": "ROUGE-L",
    "PAC-S for videos": "PAC-S",
    "RefPAC-S for videos": "RefPAC-S",
}


@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper: values by the row's label, None where the paper has none.

    columns: names of the set's cells. digits: behind the point.
    """

    source: str
    columns: tuple[str, ...]
    values: Mapping[str, tuple[float | None, ...]] = field(repr=False)
    digits: int = 1


@dataclass(frozen=True)
class PublishedCell:
    """A published number: its value as printed, digits behind the point, and where it stands."""

    value: float
    digits: int
    source: str


_TAUS = ("tau_b", "tau_c")
_CATEGORIES = ("HC", "HI", "HM", "MM", "mean")
_VATEX = tuple(
    f"{statistic} {references}"
    for references in ("no reference", "1 reference", "9 references")
    for statistic in ("tau_b", "spearman")
)

PUBLISHED: dict[str, tuple[PublishedTable, ...]] = {
    "flickr8k_expert": (
        PublishedTable(
            PACS_README,
            _TAUS,
            {
                "BLEU-1": (32.175, 32.324),
                "BLEU-4": (30.599, 30.776),
                "METEOR": (41.538, 41.822),
                "ROUGE-L": (32.139, 32.314),
                "CIDEr-D": (43.602, 43.891),
                "PAC-S": (53.919, 54.292),
            },
            digits=3,
        ),
        PublishedTable(
            f"{PACS}, table 1",
            _TAUS,
            {
                "SPICE": (51.7, 44.9),
                "CLIP-S": (51.1, 51.2),
                "RefCLIP-S": (52.6, 53.0),
                "RefPAC-S": (55.5, 55.9),
                "UMIC": (None, 46.8),
                "ViLBERTScore": (None, 50.1),
            },
        ),
        PublishedTable(f"{HICES}, table 1", _TAUS, {"HICE-S": (55.9, 56.4), "RefHICE-S": (57.2, 57.7)}),
        PublishedTable(f"{FLEUR}, table 1", _TAUS, {"FLEUR": (None, 53.0)}),
    ),
    "flickr8k_cf": (
        PublishedTable(
            PACS_README,
            _TAUS,
            {
                "BLEU-1": (17.946, 9.256),
                "BLEU-4": (16.863, 8.710),
                "METEOR": (22.269, 11.510),
                "ROUGE-L": (19.903, 10.274),
                "CIDEr-D": (24.619, 12.724),
                "PAC-S": (36.037, 18.628),
            },
            digits=3,
        ),
        PublishedTable(
            f"{PACS}, table 1",
            _TAUS,
            {
                "SPICE": (24.4, 12.0),
                "CLIP-S": (34.4, 17.7),
                "RefCLIP-S": (36.4, 18.8),
                "RefPAC-S": (37.6, 19.5),
            },
        ),
        PublishedTable(f"{HICES}, table 1", _TAUS, {"HICE-S": (37.2, 19.2), "RefHICE-S": (38.2, 19.8)}),
        PublishedTable(f"{FLEUR}, table 1", _TAUS, {"FLEUR": (38.6, None)}),
    ),
    "composite": (
        PublishedTable(
            f"{PACS}, table 2",
            _TAUS,
            {
                "BLEU-1": (29.0, 31.3),
                "BLEU-4": (28.3, 30.6),
                "ROUGE-L": (30.0, 32.4),
                "METEOR": (36.0, 38.9),
                "CIDEr-D": (34.9, 37.7),
                "SPICE": (38.8, 40.3),
                "ViLBERTScore": (None, 52.4),
                "CLIP-S": (49.8, 53.8),
                "PAC-S": (51.5, 55.7),
                "RefCLIP-S": (51.2, 55.4),
                "RefPAC-S": (53.0, 57.3),
            },
        ),
        PublishedTable(f"{HICES}, table 1", _TAUS, {"HICE-S": (53.1, 57.9), "RefHICE-S": (53.9, 58.7)}),
        PublishedTable(f"{FLEUR}, table 1", _TAUS, {"FLEUR": (None, 63.5)}),
        PublishedTable(f"{UMIC}, which does not say which tau", _TAUS, {"UMIC": (56.1, None)}),
    ),
    "pascal50s": (
        PublishedTable(
            f"{PACS}, table 4",
            _CATEGORIES,
            {
                "BLEU-1": (64.6, 95.2, 91.2, 60.7, 77.9),
                "BLEU-4": (60.3, 93.1, 85.7, 57.0, 74.0),
                "ROUGE-L": (63.9, 95.0, 92.3, 60.9, 78.0),
                "METEOR": (66.0, 97.7, 94.0, 66.6, 81.1),
                "CIDEr-D": (66.5, 97.9, 90.7, 65.2, 80.1),
                "ViLBERTScore": (49.9, 99.6, 93.1, 75.8, 79.6),
                "CLIP-S": (55.9, 99.3, 96.5, 72.0, 80.9),
                "PAC-S": (60.6, 99.3, 96.9, 72.9, 82.4),
                "RefCLIP-S": (64.9, 99.5, 95.5, 73.3, 83.3),
                "RefPAC-S": (67.7, 99.6, 96.0, 75.6, 84.7),
            },
        ),
        PublishedTable(
            f"{HICES}, table 2",
            _CATEGORIES,
            {"HICE-S": (68.6, 99.7, 96.5, 79.5, 86.1), "RefHICE-S": (71.4, 99.7, 97.7, 79.7, 87.3)},
        ),
        PublishedTable(
            "the result files of FLEUR's repository, with its own labels",
            _CATEGORIES,
            {"FLEUR": (61.3, 99.7, 97.6, 74.2, 83.2)},
        ),
        PublishedTable(f"{UMIC}, all pairs", ("mean",), {"UMIC": (85.1,)}),
    ),
    "abstract50s": (
        PublishedTable(
            f"{PACS}, table 5",
            ("accuracy",),
            {"CLIP-S": (68.2,), "PAC-S": (69.7,), "RefCLIP-S": (75.8,), "RefPAC-S": (76.9,)},
        ),
    ),
    "foil": (
        PublishedTable(
            f"{PACS}, table 6",
            ("1 reference", "4 references"),
            {
                "BLEU-1": (65.7, 85.4),
                "BLEU-4": (66.2, 87.0),
                "ROUGE-L": (54.6, 70.4),
                "METEOR": (70.1, 82.0),
                "CIDEr-D": (85.7, 94.1),
                "CLIP-S": (87.2, 87.2),
                "PAC-S": (89.9, 89.9),
                "RefCLIP-S": (91.0, 92.6),
                "RefPAC-S": (93.7, 94.9),
            },
        ),
        PublishedTable(
            f"{HICES}, table 4",
            ("1 reference", "4 references"),
            {"HICE-S": (93.1, 93.1), "RefHICE-S": (96.4, 97.0)},
        ),
    ),
    "activitynet_foil": (
        PublishedTable(
            f"{PACS}, table 6",
            ("accuracy",),
            {
                "BLEU-1": (60.1,),
                "BLEU-4": (66.1,),
                "ROUGE-L": (56.7,),
                "METEOR": (72.9,),
                "CIDEr-D": (77.9,),
                "EMScore": (89.5,),
                "PAC-S": (90.1,),
                "EMScoreRef": (92.4,),
                "RefPAC-S": (93.5,),
            },
        ),
    ),
    "vatex_eval": (
        PublishedTable(
            f"{PACS}, table 3",
            _VATEX,
            {
                "BLEU-1": (None, None, 12.2, 15.9, 28.9, 37.0),
                "BLEU-4": (None, None, 12.6, 16.4, 22.4, 29.5),
                "ROUGE-L": (None, None, 12.5, 16.3, 23.8, 30.9),
                "METEOR": (None, None, 16.4, 21.5, 27.6, 35.7),
                "CIDEr-D": (None, None, 17.3, 22.6, 27.8, 36.1),
                "EMScore": (23.2, 30.3, None, None, None, None),
                "EMScoreRef": (None, None, 28.6, 37.1, 36.8, 47.2),
                "PAC-S": (25.1, 32.6, None, None, None, None),
                "RefPAC-S": (None, None, 31.4, 40.5, 38.1, 48.8),
            },
        ),
    ),
    "capeval1k": (
        PublishedTable(
            f"{UMIC}, which does not say which tau nor which references",
            ("tau_b",),
            {
                "BLEU-1": (23.3,),
                "BLEU-4": (23.8,),
                "ROUGE-L": (22.0,),
                "METEOR": (28.8,),
                "CIDEr-D": (30.7,),
                "SPICE": (27.9,),
                "ViLBERTScore": (35.2,),
                "UMIC": (32.8,),
            },
        ),
    ),
    "nebula": (
        PublishedTable(
            "arXiv:2512.21582, table 1, on ratings that were corrected later",
            _TAUS,
            {
                "BLEU-4": (46.5, 44.1),
                "ROUGE-L": (45.8, 43.4),
                "METEOR": (50.2, 47.6),
                "CIDEr-D": (51.5, 48.8),
            },
        ),
    ),
    "coco_systems": (
        PublishedTable(
            f"{PACS}, table 7",
            ("m2_transformer",),
            {
                "BLEU-4": (39.1,),
                "METEOR": (29.2,),
                "CIDEr-D": (131.2,),
                "CLIP-S": (60.5,),
                "PAC-S": (80.6,),
                "RefPAC-S": (85.4,),
            },
        ),
    ),
}
"""Tables of the papers by set."""


def published(name: str, label: str, column: str) -> PublishedCell | None:
    """What a paper prints for a metric in a column of a set, None where none does.

    >>> published("composite", "CIDEr", "tau_b")
    PublishedCell(value=34.9, digits=1, source='Sarto et al., CVPR 2023 (PAC-S), table 2')
    """
    label = _ALIASES.get(label, label)
    for table in PUBLISHED.get(name, ()):
        if column in table.columns and label in table.values:
            value = table.values[label][table.columns.index(column)]
            if value is not None:
                return PublishedCell(value, table.digits, table.source)
    return None


def sources(name: str, labels: list[str]) -> Iterator[str]:
    """Where the published numbers of these rows stand, each once."""
    names = {_ALIASES.get(label, label) for label in labels}
    tables = (table.source for table in PUBLISHED.get(name, ()) if names & table.values.keys())
    yield from dict.fromkeys(tables)
