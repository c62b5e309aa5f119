"""Who is to blame, why, and what to do next: judge each op, trace the error, name the cause, rank, plan."""
