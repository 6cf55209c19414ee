# Written from src/vdr/study/tables.yaml by `make targets`; change it there.

.PHONY: reproduce reproduce-table1 reproduce-table4 reproduce-table13 reproduce-ev-table6 reproduce-ev-table1 reproduce-ev-table8 reproduce-ev-table9 reproduce-ev-table10 reproduce-ev-table11 reproduce-ev-table12 reproduce-ev-table18 reproduce-ev-figure1 reproduce-ev-figure7 reproduce-ev-figure8

reproduce: reproduce-table1 reproduce-table4 reproduce-table13 reproduce-ev-table6 reproduce-ev-table1 reproduce-ev-table8 reproduce-ev-table9 reproduce-ev-table10 reproduce-ev-table11 reproduce-ev-table12 reproduce-ev-table18 reproduce-ev-figure1 reproduce-ev-figure7 reproduce-ev-figure8 ## reproduce every table and figure below

reproduce-table1: setup ## WT table 1: Change over the baseline of each signal, three epochs, nDCG@5
	@$(VDR) reproduce wt-table1 $(CHOSEN)

reproduce-table4: setup ## WT table 4: Human audit: how far the teacher can be trusted (simulated annotators in mini)
	@$(VDR) reproduce wt-table4 $(CHOSEN)

reproduce-table13: setup ## WT table 13: Human audit per annotator and ring pairing (simulated annotators in mini)
	@$(VDR) reproduce wt-table13 $(CHOSEN)

reproduce-ev-table6: setup ## EV table 6: Judge tiers against the majority of three annotators (simulated in mini)
	@$(VDR) reproduce ev-table6 $(CHOSEN)

reproduce-ev-table1: setup ## EV table 1: Embedding payload per million pages
	@$(VDR) reproduce ev-table1 $(CHOSEN)

reproduce-ev-table8: setup ## EV table 8: HAC component ablations
	@$(VDR) reproduce ev-table8 $(CHOSEN)

reproduce-ev-table9: setup ## EV table 9: Nested prefix widths of one checkpoint
	@$(VDR) reproduce ev-table9 $(CHOSEN)

reproduce-ev-table10: setup ## EV table 10: Raw and HAC operating points
	@$(VDR) reproduce ev-table10 $(CHOSEN)

reproduce-ev-table11: setup ## EV table 11: Equal payload: more vectors or wider vectors
	@$(VDR) reproduce ev-table11 $(CHOSEN)

reproduce-ev-table12: setup ## EV table 12: Serving latency and throughput
	@$(VDR) reproduce ev-table12 $(CHOSEN)

reproduce-ev-table18: setup ## EV table 18: Compression transfer across encoders
	@$(VDR) reproduce ev-table18 $(CHOSEN)

reproduce-ev-figure1: setup ## EV figure 1: Accuracy against payload
	@$(VDR) reproduce ev-figure1 $(CHOSEN)

reproduce-ev-figure7: setup ## EV figure 7: Width scaling and equal-payload differences
	@$(VDR) reproduce ev-figure7 $(CHOSEN)

reproduce-ev-figure8: setup ## EV figure 8: Evidence kept and lost under HAC
	@$(VDR) reproduce ev-figure8 $(CHOSEN)
