# Written from src/vdr/study/tables.yaml by `make targets`; change it there.

.PHONY: reproduce reproduce-table1

reproduce: reproduce-table1 ## reproduce every table and figure below

reproduce-table1: setup ## WT table 1: Change over the baseline of each signal, three epochs, nDCG@5
	@$(VDR) reproduce wt-table1 $(CHOSEN)
