"""What a model has to beat: rankings that need no network, each judged like a model on problems held out."""
