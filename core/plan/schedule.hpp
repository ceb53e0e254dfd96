#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/plan/plan.hpp"

namespace reshard {

/// Which cells each rank does: contiguous parts of the plan's order, balanced by bytes, that cover
/// the plan. Cells whose bytes lie between each other's in a target file (a transposed tensor, say)
/// go to one rank where an eighth of a rank's share allows it: each page of a file should have one
/// writer. Holds nothing of the plan.
class RankCells {
 public:
  RankCells(Plan const& plan, int ranks);
  CellRange of(int rank) const {
    return {cuts_[static_cast<std::size_t>(rank)], cuts_[static_cast<std::size_t>(rank) + 1]};
  }

 private:
  std::vector<std::size_t> cuts_;  ///< the first cell of each rank, then the number of cells
};

/// Of one rank; for several ranks make a RankCells.
CellRange cells_of_rank(Plan const& plan, int rank, int ranks);

/// One past the last cell of the round that begins with the first cell of `cells`: as many as fit,
/// at least one. Of cells that are cloned unread, which need no staging, about 1 GiB is in a round.
std::size_t round_end(Plan const& plan, CellRange cells, std::uint64_t staging_bytes);

/// Rounds of one rank that reads and writes its cells itself, each about `staging_bytes` and never
/// more than twice that. Call until it gives nothing.
std::function<std::optional<RoundWork>()> direct_rounds(Plan const& plan, CellRange cells,
                                                        std::uint64_t staging_bytes);

/// Rounds in which every source file is read by one rank and its bytes travel by message: for
/// sources that not every rank sees, and on demand. No rank needs more than about `staging_bytes`
/// in a round, gaps that are read along included, unless a single cell does. In a round all ranks
/// read and write, as far as possible: writers begin at places of different readers, and a reader's
/// staging is shared by those that wait for it. A rank's cells of a round are neighbours; those of
/// the next round may be anywhere. The number of rounds
/// is the same on every rank, and so is who sends what to whom. `reader_of_file` gives the reading
/// rank of each source file.
class ExchangeRounds {
 public:
  ExchangeRounds(Plan const& plan, std::vector<int> reader_of_file, int rank, int ranks,
                 std::uint64_t staging_bytes);
  std::optional<RoundWork> next();
  /// How many rounds are left.
  std::uint64_t count() const;

 private:
  /// A cell of the round and the rank that writes it.
  struct Share {
    int writer = 0;
    std::size_t cell = 0;
  };
  /// How much of a stretch each of its readers reads, in 64ths.
  using ReaderShares = std::vector<std::pair<std::size_t, std::uint64_t>>;
  /// Neighbouring cells of one writer.
  struct Stretch {
    CellRange cells;
    ReaderShares shares;
  };
  struct Writer {
    CellRange now;                  ///< what is left of the stretch that it is at
    ReaderShares shares;            ///< of that stretch
    std::vector<Stretch> later;     ///< in the plan's order
    std::uint64_t given_bytes = 0;  ///< staging of the cells that it was given
  };
  std::vector<Stretch> stretches_of(CellRange cells) const;
  /// Lets a writer that has done its stretch begin the one whose readers have the least to do for
  /// others, the next such in the plan's order. Whether it goes on in the plan's order: false also
  /// when none is left.
  bool begin_stretch(Writer& writer);
  /// The cells of the next round: every rank makes the same choice, and no writer or reader needs
  /// more than its staging. The writer that was given least gets the next cell, until its next one
  /// does not fit: where all wait for one reader they share it, instead of one after the other.
  std::vector<Share> choose();

  Plan const& plan_;
  std::vector<int> reader_of_file_;
  int rank_;
  std::uint64_t staging_bytes_;
  std::vector<Writer> writers_;         ///< by rank
  std::vector<std::uint64_t> demands_;  ///< by reader: its shares of the writers' stretches
};

/// Takes cells out of a plan: what another run has done already. `done` is sorted, its ranges
/// neither touch nor overlap. Gives the number in the whole plan of each cell that is left; the
/// sums of the plan (source_bytes, ...) stay those of the whole.
std::vector<std::uint32_t> drop_cells(Plan& plan, std::span<CellRange const> done);

/// The readers of source files: files in order, balanced by their bytes in the plan.
std::vector<int> balanced_readers(Plan const& plan, std::size_t files, int ranks);

}  // namespace reshard
