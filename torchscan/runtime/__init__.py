"""What a real run does: facts of each module call, measured over the call tree while nothing of the user's is touched."""
