#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace reshard::megatron {

/// Sizes of the parallel axes that Megatron's args and file names state. etp 0 means "equal to tp".
struct MeshSizes {
  int tp = 1;
  int pp = 1;
  int vpp = 1;  ///< model chunks per pipeline rank
  int ep = 1;
  int etp = 1;
  friend bool operator==(MeshSizes const&, MeshSizes const&) = default;
};

/// The largest number accepted in a shard name: more than the ranks of any machine, and safe in int
/// arithmetic.
inline constexpr int largest_shard_number = 999'999;
/// TT, PPP, EEE and the data-parallel number of old optimizer directories.
inline constexpr std::size_t most_shard_numbers = 4;

/// The numbers of a shard directory's name, in order: "mp_rank_02_000_001" is {2, 0, 1}. classify()
/// decides the meaning of the second one.
struct ShardName {
  std::vector<int> numbers;
  friend bool operator==(ShardName const&, ShardName const&) = default;
};

/// Reads "mp_rank_" and one to four decimal numbers of any width, joined by '_'; nullopt for any
/// other name.
std::optional<ShardName> parse_shard_name(std::string_view name);

/// The form of the name of a place.
enum class NameStyle {
  megatron,  ///< pp is left out if the pipeline has one stage, ep if there is one expert rank, as
             ///< Megatron reads and writes
  full3d,  ///< with more than one expert rank all three numbers are written, also for one stage; as
           ///< `megatron` otherwise
};

/// The place of a shard in the grid of checkpoint files.
struct ShardPlace {
  int tp = 0;
  int pp = 0;
  int ep = 0;
  friend bool operator==(ShardPlace const&, ShardPlace const&) = default;
};

/// The directory name of a place: "mp_rank_" + tp (2 digits at least), pp and ep (3 digits at
/// least) by the style.
std::string format_shard_name(ShardPlace const& place, MeshSizes const& sizes, NameStyle style);

/// The form of such names: "mp_rank_{tp:02}_{pp:03}_{ep:03}", without the parts that the style
/// omits.
std::string shard_name_pattern(MeshSizes const& sizes, NameStyle style);

}  // namespace reshard::megatron
