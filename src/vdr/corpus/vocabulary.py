"""The words of the miniature's world: every attribute, slot value and phrasing, as data.

An *attribute* is something that a page can bear and a query can ask for. It has page wordings (what is printed) and
query wordings (what is asked), so that query and page do not always share a word: the synonyms of the miniature.
``common`` values occur in the training corpus; ``rare`` values are read by the backbone during pretraining but never
seen in retrieval training, and serve the far data sets of the out-of-domain suites.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attribute:
    """One thing a page can bear: ``page`` wordings are printed, ``query`` wordings are asked."""

    key: str
    page: tuple[str, ...]
    query: tuple[str, ...]


def _attributes(prefix: str, table: dict[str, tuple[str, str]]) -> tuple[Attribute, ...]:
    return tuple(
        Attribute(f"{prefix}.{key}", tuple(page.split("|")), tuple(query.split("|")))
        for key, (page, query) in table.items()
    )


FORM = _attributes(
    "form",
    {
        "date": ("Date|Dated", "date|day"),
        "sender": ("From|Sender", "sender|author"),
        "recipient": ("To|Attention", "recipient|addressee"),
        "subject": ("Subject|Regarding", "subject|matter"),
        "amount": ("Amount|Total due", "amount|sum"),
        "phone": ("Phone|Tel", "phone|telephone"),
        "department": ("Dept|Office", "department|office"),
        "order": ("Order no|PO number", "order|purchase"),
        "carrier": ("Ship via|Carrier", "carrier|shipper"),
        "signature": ("Signed|Approved by", "signature|approver"),
        "title": ("Title|Position", "title|position"),
        "return": ("Return to|Send back", "return|sending"),
    },
)
FINANCE = _attributes(
    "finance",
    {
        "revenue": ("Revenue|Net sales", "revenue|sales"),
        "costs": ("Costs|Cost of goods", "costs|expense"),
        "profit": ("Profit|Net income", "profit|income"),
        "tax": ("Tax|Levies", "tax|levies"),
        "assets": ("Assets|Holdings", "assets|holdings"),
        "debt": ("Debt|Loans", "debt|loans"),
        "cash": ("Cash|Liquidity", "cash|liquidity"),
        "equity": ("Equity|Capital", "equity|capital"),
        "dividends": ("Dividends|Payouts", "dividends|payouts"),
        "goodwill": ("Goodwill|Intangibles", "goodwill|intangibles"),
    },
)
REPORT = _attributes(
    "report",
    {
        "benefits": ("Benefits|Advantages", "benefits|advantages"),
        "risks": ("Risks|Dangers", "risks|dangers"),
        "policy": ("Policy|Rules", "policy|rules"),
        "trends": ("Trends|Outlook", "trends|outlook"),
        "methods": ("Methods|Approach", "methods|approach"),
        "findings": ("Findings|Results", "findings|results"),
        "funding": ("Funding|Grants", "funding|grants"),
        "goals": ("Goals|Aims", "goals|aims"),
        "barriers": ("Barriers|Obstacles", "barriers|obstacles"),
        "training": ("Training|Courses", "training|courses"),
    },
)
CHART = _attributes(
    "chart",
    {
        "accuracy": ("accuracy|precision", "accuracy|precision"),
        "loss": ("loss|penalty", "loss|penalty"),
        "recall": ("recall|coverage", "recall|coverage"),
        "latency": ("latency|delay", "latency|delay"),
        "error": ("error|mistakes", "error|mistakes"),
        "speed": ("speed|throughput", "speed|throughput"),
        "memory": ("memory|storage", "memory|storage"),
        "energy": ("energy|power draw", "energy|power"),
    },
)
STATISTIC = _attributes(
    "stat",
    {
        "coffee": ("coffee|espresso", "coffee|espresso"),
        "email": ("email|inbox", "email|inbox"),
        "pets": ("pets|animals", "pets|animals"),
        "bikes": ("bikes|cycling", "bikes|cycling"),
        "homes": ("homes|houses", "homes|houses"),
        "voters": ("voters|ballots", "voters|ballots"),
        "phones": ("mobiles|handsets", "mobiles|handsets"),
        "smokers": ("smokers|tobacco", "smokers|tobacco"),
        "games": ("games|gaming", "games|gaming"),
        "flights": ("flights|airlines", "flights|airlines"),
    },
)
ATTRIBUTES: dict[str, Attribute] = {a.key: a for group in (FORM, FINANCE, REPORT, CHART, STATISTIC) for a in group}

COMMON: dict[str, tuple[str, ...]] = {
    "entity": tuple(
        "Acme Orion Delta Zenith Vertex Nimbus Falcon Helix Corvus Lumina Granite Harbor Juniper Kestrel Meridian "
        "Northway Pinnacle Quasar".split()
    ),
    "year": tuple(str(y) for y in range(2012, 2020)),
    "topic": (
        "solar", "wind", "nursing", "privacy", "transport", "water", "schools", "farming", "vaccines", "robotics",
        "housing", "forests", "mining", "tourism",
    ),
    "place": ("Japan", "Brazil", "Kenya", "Norway", "Canada", "India", "Spain", "Egypt", "Chile", "Poland"),
    "dataset": ("Iris", "Digits", "Scenes", "Speech", "Traffic", "Genome"),
}  # fmt: skip
RARE: dict[str, tuple[str, ...]] = {
    "entity": tuple("Bramble Citadel Dynamo Everest Foxglove Glacier Ironwood Magnet".split()),
    "year": tuple(str(y) for y in range(2004, 2010)),
    "topic": ("oceans", "prisons", "libraries", "lasers", "dairy", "copper"),
    "place": ("Turkey", "Greece", "Peru", "Cuba", "Nepal"),
    "dataset": ("Insects", "Rivers", "Galaxies"),
}
METHODS = ("Alpha", "Bravo", "Cosmo", "Ditto", "Ember", "Fresco", "Gamma", "Hydra", "Indigo", "Jasper")
SURNAMES = (
    "Smith",
    "Jones",
    "Miller",
    "Davis",
    "Wilson",
    "Moore",
    "Taylor",
    "Clark",
    "Lewis",
    "Walker",
    "Young",
    "King",
)
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
OFFICES = ("Legal", "Billing", "Claims", "Stores", "Audit", "Export")
CARRIERS = ("rail", "truck", "airmail", "barge", "courier")
ROLES = ("manager", "director", "clerk", "analyst", "engineer")
SUBJECTS = ("refund", "survey", "repair", "lease", "permit", "visit")
FILLERS = (
    "steady", "local", "higher", "lower", "public", "shared", "annual", "broad", "early", "modest", "strong", "mixed",
    "regional", "national", "targeted", "rapid",
)  # fmt: skip
FILLER_NOUNS = (
    "gains", "teams", "costing", "plans", "jobs", "demand", "tests", "sites", "users", "surveys", "budgets", "targets",
    "experts", "partners", "delays", "pilots",
)  # fmt: skip
DISTRACTORS = ("See also {}", "Compare {}", "Replaces {}")

# What a template may name: {a} the asked attribute (or "x and y"), {entity}, {year}, {topic}, {place}, {dataset}.
# The part in each domain that carries a condition is appended only if the query has that condition.
TEMPLATES: dict[str, dict[str, tuple[str, ...]]] = {
    "train": {
        "form": ("What is the {a}?", "What {a} is given?", "What is the {a} mentioned in the document?"),
        "finance": ("What was the {a}?", "How much was the {a}?", "What is the total {a}?"),
        "report": ("What are the main {a}?", "Which {a} are described?", "What are some {a}?"),
        "chart": ("Which method has the best {a}?", "What is the {a} shown in the figure?"),
        "stat": ("What percent is shown for {a}?", "How many people are counted for {a}?"),
    },
    "other": {
        "form": ("Show me paperwork that states a {a}", "Locate the {a} entry"),
        "finance": ("Give the reported {a}", "I need figures on {a}", "How did {a} develop?"),
        "report": ("Explain the {a}", "I want to learn about {a}", "Summarise any {a}"),
        "chart": ("Compare approaches by {a}", "Plot of {a}"),
        "stat": ("Statistics on {a}", "Share of the population: {a}"),
    },
}
CONDITIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "train": {
        "entity": ("of {}", "for {}"),
        "year": ("in {}", "for the year {}"),
        "topic": ("of {}", "for {}"),
        "place": ("in {}", "for {}"),
        "dataset": ("on {}", "for {}"),
    },
    "other": {
        "entity": ("at {}", "by {}", "concerning {}"),
        "year": ("during {}", "as of {}"),
        "topic": ("around {}", "regarding {}"),
        "place": ("across {}", "within {}"),
        "dataset": ("using {}", "with {}"),
    },
}
GRADE_WORDS = ("unrelated", "on topic", "part of the answer", "full answer")
