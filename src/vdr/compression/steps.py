"""The compression part's own steps, after an encoder's vectors: scores of every variant, serving times, evidence cases."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

from vdr.compression.prefix import Widths
from vdr.errors import BadInput
from vdr.graph import Made, Step
from vdr.steps import Steps, run_label
from vdr.steps.base import plain
from vdr.study.catalogue import load_arms
from vdr.study.settings import Profile

__all__ = ["ENCODERS", "CompressionSteps"]

#: The encoders that compression is tried on: the student, its untrained start (adapters zero, projection random), the miner.
ENCODERS = ("student", "base", "miner")


class CompressionSteps:
    """Steps of one profile's compression. Each method returns the same step for the same arguments."""

    def __init__(self, profile: Profile, steps: Steps | None = None) -> None:
        self.profile = profile
        self.steps = steps or Steps(profile)
        self.settings = profile.compression
        self.label = run_label(self.settings.arm, self.settings.seed, profile.recipe)

    @property
    def widths(self) -> Widths:
        """Widths that the student was trained at: the setting, or its losses' own, or the full width alone."""
        full = self.profile.training.projection_dim
        own = tuple(getattr(load_arms()[self.settings.arm].losses.infonce, "widths", ()) or ())
        return Widths(tuple(self.settings.trained_widths) or own or (full,))

    @functools.cache  # noqa: B019
    def vectors(self, encoder: str) -> Step:
        """Vectors of all suites by one of the encoders."""
        if encoder == "student":
            return self.steps.vectors(load_arms()[self.settings.arm], self.profile.seed(self.settings.seed), self.profile.recipe)
        if encoder not in ENCODERS:
            raise BadInput(f"unknown encoder {encoder!r}", where="compression.transfer", todo=f"choose among {', '.join(ENCODERS)}")
        return self._other_vectors(encoder)

    def encodes(self, encoder: str) -> bool:
        """Whether suites can be encoded with it: a finished miner tells no page positions, which HAC and the context
        tokens' ablation need."""
        return encoder != "miner" or self.profile.models.miner.source is None

    def _other_vectors(self, encoder: str) -> Step:
        steps, profile = self.steps, self.profile
        if not self.encodes(encoder):
            what = "the finished miner's vectors tell no page positions, so they cannot be compressed by position"
            raise BadInput(what, where="compression.transfer", todo="leave miner out")
        config: dict[str, Any] = {"training": steps._training_config(), "backbone": steps._backbone()}
        inputs: dict[str, Step] = {"corpus": steps.corpus(), **steps._cache()}
        if encoder == "miner":
            inputs["checkpoint"] = steps.miner()
        else:
            config["untrained"] = self.settings.seed

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.corpus.access import load_suites as datasets
            from vdr.evaluation.encode import encode_suites
            from vdr.models.student import Seeds, Student

            with tempfile.TemporaryDirectory(dir=out.parent, prefix=".base-") as scratch:
                if encoder == "miner":
                    checkpoint = made["checkpoint"].path
                else:
                    checkpoint = Path(scratch)
                    Student.create(steps._backbone_dir(), profile.training, Seeds.of(self.settings.seed)).save(checkpoint)
                encode_suites(checkpoint, steps._backbone_dir(), datasets(made["corpus"].path),
                              made["vision"].path if "vision" in made else None, profile.training, out, measures,
                              label=f"encode {encoder}", **steps._run_on())

        return Step("vectors", encoder, config, inputs, build)

    @functools.cache  # noqa: B019
    def scores(self, encoder: str) -> Step:
        """EV's metrics of every variant (`vdr.compression.variants`) of one encoder: scores.csv, encoder.json."""
        settings = self.settings
        widths = self.widths if encoder == "student" else Widths((self.profile.training.projection_dim,))
        config = {
            "settings": plain(settings, "arm", "seed", "cascade", "serving_pages", "serving_queries", "serving_suite", "batch",
                              "transfer", "lost_rank", "trained_widths"),
            "trained": list(widths.trained), "suites": list(self.profile.suites),
        }

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.compression.variants import score_variants, variants_of
            from vdr.corpus.access import load_suites as datasets

            wanted = [data for data in datasets(made["corpus"].path) if data.suite in self.profile.suites]
            variants = variants_of(settings, widths.full)
            table = score_variants(made["vectors"].path, wanted, variants, widths, depth=settings.depth,
                                   label=f"compress {encoder}")
            # seconds differ from run to run and would change the file's bytes: they are a measure, not a result
            measures.update(variants=len(variants), timing={"pooling_seconds": float(table.pop("seconds").sum())})
            table.to_csv(out / "scores.csv", index=False, float_format="%.6f")
            about = {"encoder": encoder, "label": self.label if encoder == "student" else encoder, "full": widths.full,
                     "trained": list(widths.trained), "vectors": made["vectors"].key}
            (out / "encoder.json").write_text(json.dumps(about, indent=1, sort_keys=True) + "\n", encoding="utf-8")

        label = self.label if encoder == "student" else encoder
        return Step("compressed", label, config, {"corpus": self.steps.corpus(), "vectors": self.vectors(encoder)}, build)

    @functools.cache  # noqa: B019
    def serving(self) -> Step:
        """Times and sizes of Table 12's forms: serving.csv. What it holds differs from run to run: it is a measurement."""
        settings = self.settings
        names = ("d", "k", "w_pos", "cascade", "serving_pages", "serving_queries", "serving_suite", "batch")
        config = {name: getattr(settings, name) for name in names}

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.compression.serving import measure_serving, stratified
            from vdr.corpus.access import load_suites as datasets

            own = [data for data in datasets(made["corpus"].path) if data.suite == settings.serving_suite]
            corpus = stratified(made["vectors"].path, [(data.suite, data.name) for data in own], settings.serving_pages,
                                settings.serving_queries)
            texts = {f"{data.name}/{name}": text for data in own for name, text in data.queries.items()}
            encoder = self._query_encoder(made["checkpoint"].path)

            def encode(i: int) -> None:
                encoder.queries({"q": texts[corpus[1].ids[i]]})

            with tempfile.TemporaryDirectory(dir=out.parent, prefix=".serving-") as scratch:
                table = measure_serving(corpus, settings, self.widths, Path(scratch), encode=encode)
            table.to_csv(out / "serving.csv", index=False)
            measures["timing"] = {row["form"]: row["search_ms"] for row in table.to_dict("records")}

        checkpoint = self.vectors("student").inputs["checkpoint"]
        assert isinstance(checkpoint, Step)
        inputs = {"corpus": self.steps.corpus(), "vectors": self.vectors("student"), "checkpoint": checkpoint}
        return Step("serving", self.label, config, inputs, build)

    def _query_encoder(self, checkpoint: Path) -> Any:
        from vdr.evaluation.encode import Encoder

        return Encoder(checkpoint, self.steps._backbone_dir(), self.profile.training, **self.steps._run_on())

    @functools.cache  # noqa: B019
    def cases(self) -> Step:
        """Evidence cases (Figure 8): cases.json, and for each case its page, map and clusters."""
        settings = self.settings
        config = {name: getattr(settings, name) for name in ("d", "k", "w_pos", "serving_suite", "lost_rank")}

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.compression.record import write_cases
            from vdr.corpus.access import load_suites as datasets

            own = [data for data in datasets(made["corpus"].path) if data.suite == settings.serving_suite]
            write_cases(out, made["vectors"].path, own, settings, self.widths, measures)

        return Step("cases", self.label, config, {"corpus": self.steps.corpus(), "vectors": self.vectors("student")}, build)
