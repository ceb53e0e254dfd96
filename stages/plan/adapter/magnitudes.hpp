#pragma once

#include <map>
#include <string>

#include "core/formats/checkpoint.hpp"
#include "stages/plan/adapter/low_rank_pairs.hpp"

namespace reshard {

/// The magnitudes of a DoRA adapter of peft: a vector for each B, over the rows of B.
class Magnitudes {
 public:
  explicit Magnitudes(Checkpoint const& adapter);
  bool none() const { return places_.empty(); }
  /// The adapter without them.
  Checkpoint others() const;
  /// The magnitudes of a piece of a B, which is stored in `blob` of `rank` columns; its file is
  /// that of the piece. Errors of kind source: no magnitude, or one that is cut elsewhere.
  FactorPiece beside(FactorPiece const& b, Blob const& blob, Index rank) const;

 private:
  Checkpoint const& adapter_;
  std::map<std::string, std::size_t, std::less<>> places_;  ///< by the stored name
};

/// The stored name of the magnitude beside that of a B; without the ".weight" that peft leaves out
/// in its files. "" for other names.
std::string magnitude_name(std::string_view b);

}  // namespace reshard
