#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/formats/megatron/headers/shard_name.hpp"
#include "core/formats/megatron/mcore/args.hpp"

namespace reshard::megatron {

struct ShardHeader;

/// The evidence of the keys of one shard for its place.
struct KeySummary {
  bool embedding = false;  ///< embedding.word_embeddings.weight (multi-token prediction puts a copy
                           ///< into the last stage)
  bool head = false;       ///< output_layer.*
  bool final_norm = false;  ///< decoder.final_layernorm.* or decoder.final_norm.*
  bool experts = false;     ///< any routed expert
  bool mtp = false;
  int first_layer = -1;  ///< local number; -1: no decoder layer
  int last_layer = -1;
  int chunks = 1;
  std::uint64_t dense_hash = 0;  ///< of names, dtypes and shapes of all tensors but routed experts
  std::optional<Index> expert_fc1_rows;  ///< rows of one expert's fc1 in this shard, if known
  friend bool operator==(KeySummary const&, KeySummary const&) = default;
};

KeySummary summarize_keys(ShardHeader const& header);

/// The facts of one shard directory.
struct ShardFacts {
  std::string name;
  ShardName numbers;
  bool has_model_file = true;
  std::optional<ArgsSizes> args;
  std::optional<KeySummary> keys;
};

/// Sizes given by the user; others are inferred. ep 1 selects the non-EP reader, ep above 1 the
/// EP-aware one.
struct UserSizes {
  std::optional<int> tp = {};
  std::optional<int> pp = {};
  std::optional<int> ep = {};
  std::optional<int> etp = {};
};

enum class LayoutClass { one_d, two_d, three_d, three_d_pp_elided };
enum class Loader { non_ep, ep_aware };
/// The origin of a size, strongest first.
enum class SizeSource { user, args, keys, shapes, names, fallback };

std::string_view text(LayoutClass value);  ///< "1D", "2D", "3D", "3D (pp elided)"
std::string_view text(Loader value);       ///< "non-EP", "EP-aware"
std::string_view text(SizeSource value);   ///< "user", …, "default"

/// The origin of each member of Classification::sizes.
struct SizeSources {
  SizeSource tp = SizeSource::fallback;
  SizeSource pp = SizeSource::fallback;
  SizeSource vpp = SizeSource::fallback;
  SizeSource ep = SizeSource::fallback;
  SizeSource etp = SizeSource::fallback;
};

/// Two contradictory facts, or missing data.
struct Mismatch {
  std::string sentence;
  bool user_given = false;  ///< one of the facts was stated by the user
};

/// Two directories with the same numbers, a shard without a place and the like give place {-1, -1,
/// -1}.
inline constexpr ShardPlace no_place{-1, -1, -1};

/// The layout of a set of mp_rank_* directories, with the reason.
struct Classification {
  LayoutClass layout_class = LayoutClass::one_d;
  std::string reason;
  std::string expected_pattern;
  Loader loader = Loader::non_ep;
  MeshSizes sizes;  ///< etp is always stated (never 0)
  SizeSources sources;
  std::vector<ShardPlace> places;         ///< of each input shard, in input order
  std::vector<std::string> missing;       ///< missing names that Megatron's own loader would open
  std::vector<std::string> extra;         ///< names that it would not open
  std::vector<std::string> without_file;  ///< directories that lack the model file
  std::vector<std::string> notes;
  std::vector<Mismatch> mismatches;  ///< empty: the checkpoint can be read
};

/// Decides the meaning of the numbers. Only EP makes a third coordinate, never PP > 1.
///
/// Evidence, strongest first: the user's sizes, args, keys, names. A contradiction by a weaker one
/// is a mismatch.
///   user ep > 1:  mp_rank_TT_PPP_EEE, or mp_rank_TT_EEE with one stage; else a mismatch
///   user ep = 1:  mp_rank_TT or mp_rank_TT_PPP; three numbers are a mismatch
///   not stated:   by the evidence, with a note
Classification classify(std::vector<ShardFacts> const& shards, UserSizes const& user);

/// Throws if there are mismatches: one Error with all of them, of kind usage if the user's sizes
/// are among them, else source.
void require_readable(Classification const& classification, std::string_view place);

}  // namespace reshard::megatron
