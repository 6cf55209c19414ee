"""Steps from the corpus to the candidates that the teacher is asked about."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from vdr.errors import BadInput
from vdr.graph import Made, Step
from vdr.steps.base import PageImages, StepsBase, plain, train_pages, train_queries, train_rows
from vdr.study.catalogue import load_arms

__all__ = ["DataSteps"]

SINGLE = "single.npz"  # a finished miner's own single vectors, for the first stage of the search


class DataSteps(StepsBase):
    """Corpus, frozen vision features, miner, pools."""

    # -- data ----------------------------------------------------------------------------------------------------------
    @functools.cache  # noqa: B019 - one Steps object lives as long as its process
    def corpus(self) -> Step:
        """Training pages and rows, suites with their judgements."""
        profile = self.profile
        config = {"corpus": plain(profile.corpus, "manifest"), "suites": list(profile.suites)}

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
            from vdr.steps.vision import cache_all

            hardware = profile.hardware
            sizes = cache_all(made["corpus"].path, self._backbone_dir(), profile.training, out, hardware)
            measures.update({name: {"pages": pages} for name, pages in sizes.items()})

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
        if self.profile.models.miner.source is not None:
            return self._finished_miner_vectors(self.profile.models.miner.source)
        profile = self.profile
        config = {"training": self._training_config(), "backbone": self._backbone(), "split": "train"}

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            from vdr.corpus.access import load_train
            from vdr.evaluation.encode import Encoder
            from vdr.models.vectors import write_vectors

            corpus = load_train(made["corpus"].path)
            encoder = Encoder(made["miner"].path, self._backbone_dir(), profile.training, **self._run_on())
            source = encoder.source(corpus.pages, made["vision"].path / "train" if "vision" in made else None)
            pages = encoder.pages(train_pages(corpus), source, "miner: pages")
            queries = encoder.queries(train_queries(made["corpus"].path), "miner: queries")
            write_vectors(out, pages, queries)
            measures.update(pages=len(pages), queries=len(queries))

        return Step("miner-vectors", "", config, {"corpus": self.corpus(), "miner": self.miner(), **self._cache()}, build)

    def _finished_miner_vectors(self, source: str) -> Step:
        profile = self.profile
        revision = profile.models.miner.revision
        config = {"miner": self._identity(source, revision), "split": "train"}

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            import numpy as np

            from vdr.corpus.access import load_train
            from vdr.mining.finished import encode_pages, encode_queries, load_retriever
            from vdr.models.vectors import write_vectors
            from vdr.models.weights import locate

            corpus = load_train(made["corpus"].path)
            retriever = load_retriever(locate(source, revision), profile.hardware.device)
            batch = profile.training.encode_batch
            pages, page_single = encode_pages(retriever, PageImages(corpus.pages, train_pages(corpus)), batch)
            queries, query_single = encode_queries(retriever, train_queries(made["corpus"].path), batch)
            write_vectors(out, pages, queries)
            np.savez(out / SINGLE, pages=page_single, queries=query_single)
            measures.update(pages=len(pages), queries=len(queries))

        return Step("miner-vectors", "", config, {"corpus": self.corpus()}, build)

    @functools.cache  # noqa: B019
    def pools(self) -> Step:
        """The frozen pool of every training row (WT §3)."""
        mining = self.profile.mining
        config = {"mining": plain(mining, "shard_rows", "device", "top", "band", "last_rank", "draw_seed")}

        def build(out: Path, measures: dict[str, Any], made: Made) -> None:
            import numpy as np

            from vdr.mining import mine_pools
            from vdr.models.vectors import read_vectors

            pages, queries = read_vectors(made["vectors"].path)
            single: dict[str, Any] = {}
            if SINGLE in made["vectors"].manifest["files"]:
                with np.load(made["vectors"].file(SINGLE)) as own:
                    single = {"page_single": own["pages"], "query_single": own["queries"]}
            mine_pools(pages, queries, train_rows(made["corpus"].path), mining, out, measures, **single)

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
