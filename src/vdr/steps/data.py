"""Steps from the corpus to the candidates that the teacher is asked about."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from vdr.errors import BadInput
from vdr.graph import Made, Step
from vdr.steps.base import StepsBase, plain, train_pages, train_rows
from vdr.study.catalogue import load_arms

__all__ = ["DataSteps"]


class DataSteps(StepsBase):
    """Corpus, frozen vision features, miner, pools."""

    # -- data ----------------------------------------------------------------------------------------------------------
    @functools.cache  # noqa: B019 - one Steps object lives as long as its process
    def corpus(self) -> Step:
        """Training pages and rows, suites with their judgements."""
        profile = self.profile
        config = {"corpus": plain(profile.corpus), "suites": list(profile.suites)}

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.corpus.build import build_corpus

            build_corpus(out, profile.corpus, profile.suites, measures)

        return Step("corpus", profile.name, config, {}, build)

    @functools.cache  # noqa: B019
    def vision(self) -> Step:
        """The frozen vision tower's output for every page, `train/` and `<suite>/<data set>/`."""
        profile = self.profile
        config = {"backbone": self._backbone(), "max_visual_tokens": profile.training.max_visual_tokens}

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.corpus.access import load_suites as datasets
            from vdr.corpus.access import load_train
            from vdr.evaluation.encode import build_vision_cache

            backbone = self._backbone_dir()
            where = made["corpus"].path
            sets = {"train": load_train(where).pages} | {f"{d.suite}/{d.name}": d.pages for d in datasets(where)}
            for name, pages in sets.items():
                build_vision_cache(pages, backbone, out / name, profile.training, label=f"vision {name}", **self._run_on())
                measures[name] = {"pages": len(pages)}

        return Step("vision", "", config, {"corpus": self.corpus()}, build)

    # -- mining --------------------------------------------------------------------------------------------------------
    @functools.cache  # noqa: B019
    def miner(self) -> Step:
        """The retriever that mines: trained here, as a student of the baseline with a seed that no student has."""
        miner = self.profile.models.miner
        if miner.seed is None or miner.epochs is None:
            raise BadInput("the miner is a finished model, nothing is trained", where="models.miner")
        if miner.seed in self.profile.seeds:
            raise BadInput(f"seed {miner.seed} is a training seed too", where="models.miner.seed", todo="choose another")
        baseline = load_arms()["baseline"]
        return self._trained("miner", "", baseline, self.rows(baseline, 0), miner.seed, miner.epochs)

    @functools.cache  # noqa: B019
    def miner_vectors(self) -> Step:
        """The miner's vectors of all training pages and queries."""
        profile = self.profile
        config = {"training": self._training_config(), "backbone": self._backbone(), "split": "train"}

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.corpus.access import load_train
            from vdr.evaluation.encode import Encoder
            from vdr.evaluation.vectors import write_vectors

            corpus = load_train(made["corpus"].path)
            rows = corpus.rows[corpus.rows["split"] == "train"]
            encoder = Encoder(made["miner"].path, self._backbone_dir(), profile.training, **self._run_on())
            source = encoder.source(corpus.pages, made["vision"].path / "train" if "vision" in made else None)
            pages = encoder.pages(train_pages(corpus), source, "miner: pages")
            queries = encoder.queries(dict(zip(rows["query_id"], rows["query"], strict=True)), "miner: queries")
            write_vectors(out, pages, queries)
            measures.update(pages=len(pages), queries=len(queries))

        return Step("miner-vectors", "", config, {"corpus": self.corpus(), "miner": self.miner(), **self._cache()}, build)

    @functools.cache  # noqa: B019
    def pools(self) -> Step:
        """The frozen pool of every training row (WT §3)."""
        mining = self.profile.mining
        config = {"mining": plain(mining, "shard_rows", "device", "top", "band", "last_rank", "draw_seed")}

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.evaluation.vectors import read_vectors
            from vdr.mining import mine_pools

            pages, queries = read_vectors(made["vectors"].path)
            mine_pools(pages, queries, train_rows(made["corpus"].path), mining, out, measures)

        return Step("pools", "", config, {"corpus": self.corpus(), "vectors": self.miner_vectors()}, build)

    @functools.cache  # noqa: B019
    def scored(self) -> Step:
        """The candidates of every pool that the teacher is asked about (WT App. O)."""
        mining = self.profile.mining
        config = {"mining": plain(mining, "shard_rows", "device", "depth", "pool")}

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.mining import build_scored_pool, read_pools

            build_scored_pool(read_pools(made["pools"].path), train_rows(made["corpus"].path), mining, out, measures)

        return Step("scored", "", config, {"corpus": self.corpus(), "pools": self.pools()}, build)
