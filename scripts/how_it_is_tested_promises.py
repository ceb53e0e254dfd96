"""What the program promises, how each promise is tried, and by which tests: the words of docs/how-it-is-tested.md."""

PROMISES = [
    ("The target is absent, the complete old checkpoint or the complete new one, at every moment",
     "A kill at every call that concerns the job's files; kills at random moments on several ranks",
     ["tests/sweep", "test_bad_moments.test_a_kill_at_any_moment_leaves_the_target_absent_or_complete"]),
    ("An interrupted run resumes where it stopped, and ends with the same bytes",
     "Kills, signals and failed calls during a run that resumes an earlier one; chains of interruptions",
     ["tests/sweep", "test_resume.test_interruptions_one_after_the_other"]),
    ("A failed call of the system is an error with the right exit code, never a wrong target",
     "Every call fails once with each of six errors, and from there on; transfers end halfway; calls hang",
     ["tests/sweep", "Capture.WhatTheSystemRefusesToAFolderWalkIsNoBugOfOurs"]),
    ("`clean` and `nightly` remove only their own files",
     "The same faults during both, beside files of other jobs with names like the target's",
     ["tests/sweep", "test_nightly"]),
    ("Ranks with different views are refused",
     "Other bytes, other listings, other settings, maps and builds on one rank",
     ["test_two_worlds.test_a_copy_with_other_bytes_on_one_node_is_refused",
      "test_two_worlds.test_a_name_that_one_rank_is_not_shown_makes_no_wrong_target",
      "test_two_worlds.test_other_settings_on_one_rank_are_refused"]),
    ("A source that changes while it is read is never published as a mixture",
     "It is replaced, or rewritten with its old time, at every call that concerns it",
     ["test_two_worlds.test_a_source_replaced_at_any_call_gives_no_mixture",
      "test_bad_moments.test_a_source_that_changes_during_the_run_is_not_published"]),
    ("A bit that changes on its way is found before publication, and named",
     "Flipped, swapped and dropped reads, writes and messages of one rank",
     ["test_faults.test_every_planted_fault_is_caught_and_named"]),
    ("Values arrive bit for bit, in any layout and format",
     "Random pairs of layouts there and back; independent readers and writers; every model family",
     ["test_random_layouts.test_there_and_back", "test_families.test_there_and_back_changes_nothing", "Plan.EveryLayoutBecomesEveryOther"]),
    ("The target's bytes do not depend on the number of ranks or the memory",
     "The same job on other numbers of ranks and with other sizes",
     ["test_end_to_end.test_the_target_has_the_same_bytes_on_any_number_of_ranks", "test_end_to_end.test_a_small_memory_limit_changes_no_byte"]),
    ("A damaged or hostile file is refused; it is never executed and never trusted",
     "Damage of every kind that a format allows, and fuzzing of every parser",
     ["test_bad_files", "test_bad_files.test_a_call_in_a_pickle_is_never_made", "test_hdf5_bad"]),
]

WORDS_OF_SCENARIOS = {
    "publication": "a run to a name that is free",
    "replace": "a run that replaces a checkpoint",
    "replace-two-renames": "the same on a file system that cannot exchange two names",
    "resume": "a run after one that was killed",
    "clean": "`reshard clean` after a run that was killed",
    "nightly": "a nightly run that converts one checkpoint, removes another, and cleans what an interrupted run left of a third",
}

WORDS_OF_FAULTS = {
    "kill": "SIGKILL", "eio": "EIO", "eio-lasting": "EIO from there on", "estale": "ESTALE", "enospc": "ENOSPC", "enospc-lasting": "ENOSPC from there on",
    "edquot": "EDQUOT", "eacces": "EACCES", "eintr": "EINTR", "short": "half a transfer", "hold": "it hangs"
}
