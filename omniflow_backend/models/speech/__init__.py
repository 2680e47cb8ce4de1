"""Speech in (Whisper) and speech out (hibari): real weights from Python packages."""
