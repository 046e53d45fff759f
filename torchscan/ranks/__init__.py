"""Models that are spread over many processes: what each of them holds, computes and tells the others."""
