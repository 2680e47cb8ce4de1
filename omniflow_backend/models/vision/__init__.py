"""Pictures for the text model: a small trained tower whose outputs stand where token embeddings would."""
