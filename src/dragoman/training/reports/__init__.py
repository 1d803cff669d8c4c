"""What a run tells and leaves behind: its log, trackers, provenance, card, summary and page."""
