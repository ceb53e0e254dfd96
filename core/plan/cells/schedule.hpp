#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/plan/plan.hpp"

namespace reshard {

/// The cells of each rank: contiguous parts of the plan's order, balanced by bytes, that cover the
/// plan. Cells whose bytes interleave in a target file (a transposed tensor, say) go to one rank if
/// an eighth of a rank's share allows it: each page of a file should have one writer. Does not
/// refer to the plan.
class RankCells {
 public:
  RankCells(Plan const& plan, int ranks);
  CellRange of(int rank) const {
    return {cuts_[static_cast<std::size_t>(rank)], cuts_[static_cast<std::size_t>(rank) + 1]};
  }

 private:
  std::vector<std::size_t> cuts_;  ///< the first cell of each rank, then the number of cells
};

/// The cells of one rank; for several ranks make a RankCells.
CellRange cells_of_rank(Plan const& plan, int rank, int ranks);

/// One past the last cell of the round that begins with the first cell of `cells`: as many as fit,
/// at least one. A round has at most about 1 GiB of cells that are cloned unread, which need no
/// staging.
std::size_t round_end(Plan const& plan, CellRange cells, std::uint64_t staging_bytes);

/// Rounds of one rank that reads and writes its cells itself, each about `staging_bytes` and never
/// more than twice that. To be called until it returns nullopt.
std::function<std::optional<RoundWork>()> direct_rounds(Plan const& plan, CellRange cells,
                                                        std::uint64_t staging_bytes);

/// Rounds in which every source file is read by one rank and its bytes travel by message: for
/// sources that not every rank can access, and on demand. No rank needs more than about
/// `staging_bytes` in a round, gaps that are read along included, unless a single cell does. In a
/// round all ranks read and write, as far as possible: writers begin at places of different
/// readers, and a reader's staging is shared by the writers that wait for it. A rank's cells of a
/// round are neighbours; those of the next round may be anywhere. The number of rounds is the same
/// on every rank, and so are the messages. `reader_of_file` gives the reading rank of each source
/// file.
class ExchangeRounds {
 public:
  ExchangeRounds(Plan const& plan, std::vector<int> reader_of_file, int rank, int ranks,
                 std::uint64_t staging_bytes);
  std::optional<RoundWork> next();
  /// The number of rounds left.
  std::uint64_t count() const;

 private:
  /// A cell of the round and the rank that writes it.
  struct Share {
    int writer = 0;
    std::size_t cell = 0;
  };
  /// The share of each reader of a stretch, in 64ths.
  using ReaderShares = std::vector<std::pair<std::size_t, std::uint64_t>>;
  /// Neighbouring cells of one writer.
  struct Stretch {
    CellRange cells;
    ReaderShares shares;
  };
  struct Writer {
    CellRange now;                  ///< the rest of the current stretch
    ReaderShares shares;            ///< of that stretch
    std::vector<Stretch> later;     ///< in the plan's order
    std::uint64_t given_bytes = 0;  ///< staging of the cells assigned so far
  };
  std::vector<Stretch> stretches_of(CellRange cells) const;
  /// Lets a writer that has done its stretch begin the one whose readers have the least work for
  /// others, the next such in the plan's order. Returns whether it continues in the plan's order:
  /// false also if none is left.
  bool begin_stretch(Writer& writer);
  /// The cells of the next round: every rank makes the same choice, and no writer or reader needs
  /// more than its staging. The writer with the fewest bytes so far gets the next cell, until its
  /// next one does not fit: writers that wait for one reader share it, instead of taking turns.
  std::vector<Share> choose();

  Plan const& plan_;
  std::vector<int> reader_of_file_;
  int rank_;
  std::uint64_t staging_bytes_;
  std::vector<Writer> writers_;         ///< by rank
  std::vector<std::uint64_t> demands_;  ///< by reader: its shares of the writers' stretches
};

/// Removes cells from a plan that another run has done already. `done` is sorted, its ranges
/// neither touch nor overlap. Returns the number in the complete plan of each remaining cell; the
/// sums of the plan (source_bytes, ...) stay those of the complete plan.
std::vector<std::uint32_t> drop_cells(Plan& plan, std::span<CellRange const> done);

/// The readers of source files: files in order, balanced by their bytes in the plan.
std::vector<int> balanced_readers(Plan const& plan, std::size_t files, int ranks);

}  // namespace reshard
