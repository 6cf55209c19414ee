"""Tables, figures, notebooks and the record of a run: everything that is shown, made from artefacts only."""
