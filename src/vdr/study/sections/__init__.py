"""One settings class per part of the study; `vdr.study.settings.Profile` puts them together."""
