#include "core/formats/megatron/headers/classify.hpp"

#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/megatron/headers/grid.hpp"

namespace reshard::megatron {
namespace {

/// The meaning of the second of two numbers.
enum class Second { pp, ep };

/// One source's opinion about it.
struct Opinion {
  SizeSource source = SizeSource::fallback;
  Second second = Second::pp;
  std::string why;
};

struct SizeWord {
  std::string_view attribute;
  std::optional<int> ArgsSizes::*member;
};

constexpr std::array<SizeWord, 5> size_words = {
    {{"tensor_model_parallel_size", &ArgsSizes::tp},
     {"pipeline_model_parallel_size", &ArgsSizes::pp},
     {"virtual_pipeline_model_parallel_size", &ArgsSizes::vpp},
     {"expert_model_parallel_size", &ArgsSizes::ep},
     {"expert_tensor_parallel_size", &ArgsSizes::etp}}};

std::string_view meaning(Second second) {
  return second == Second::pp ? "a pipeline rank" : "an expert rank";
}

/// One classification in the making.
class Classifier {
 public:
  Classifier(std::vector<ShardFacts> const& shards, UserSizes const& user)
      : shards_(shards), user_(user) {
    check_user("tensor_parallel_size", user_.tp);
    check_user("pipeline_parallel_size", user_.pp);
    check_user("expert_parallel_size", user_.ep);
    check_user("expert_tensor_parallel_size", user_.etp);
  }

  Classification classify() && {
    count_fields();
    merge_args();
    merge_keys();
    if (fields_ == 2) decide_second();
    resolve_sizes();
    place_shards();
    describe();
    check_number_of_fields();
    bool const experts = experts_ || result_.sizes.ep > 1 || args_.experts.value_or(0) > 0;
    if (experts) check_expert_rows();
    check_grid(result_, shards_, style(), experts);
    return std::move(result_);
  }

 private:
  void add(std::string sentence, bool user_given = false) {
    result_.mismatches.push_back({std::move(sentence), user_given});
  }

  /// A size outside its range is reported and then counts as not given.
  void check_user(std::string_view word, std::optional<int>& size) {
    if (!size || (*size >= 1 && *size <= largest_shard_number)) return;
    add(fmt::format("{} is {}, expected 1 to {}. Correct it.", word, *size, largest_shard_number),
        true);
    size.reset();
  }

  std::string some_names() const {
    std::vector<std::string> names;
    for (auto const& shard : shards_) names.push_back(shard.name);
    return listed(names, 4);
  }

  std::size_t fields(ShardFacts const& shard) const { return shard.numbers.numbers.size(); }

  /// The number of fields most names have; others are no shards of this checkpoint.
  void count_fields() {
    std::map<std::size_t, std::vector<std::string>> by_count;
    for (auto const& shard : shards_) by_count[fields(shard)].push_back(shard.name);
    if (by_count.empty())
      return add("no mp_rank_* directories. Give the directory of a checkpoint.");
    auto const most = std::max_element(
        by_count.begin(), by_count.end(),
        [](auto const& a, auto const& b) { return a.second.size() < b.second.size(); });
    fields_ = most->first;
    if (by_count.size() > 1)
      for (auto const& [count, names] : by_count)
        if (count != fields_)
          add(fmt::format(
              "these names have {1} numbers: {0}; these have {3}: {2}. Two checkpoints may be "
              "in one directory: keep one.",
              listed(names, 4), count, listed(most->second, 4), fields_));
    if (fields_ > 3)
      add(fmt::format(
          "{} have {} numbers. Expected are at most tensor, pipeline and expert rank, so one "
          "is a data-parallel rank. Give the directory that holds the weights.",
          some_names(), fields_));
    largest_.assign(fields_, 0);
    for (auto const& shard : shards_)
      for (std::size_t i = 0; fields(shard) == fields_ && i < fields_; ++i)
        largest_[i] = std::max(largest_[i], shard.numbers.numbers[i]);
  }

  void merge_args() {
    for (auto const& word : size_words) {
      ShardFacts const* first = nullptr;
      for (auto const& shard : shards_) {
        if (!shard.args || !((*shard.args).*word.member)) continue;
        if (first == nullptr) {
          first = &shard;
          args_.*word.member = (*shard.args).*word.member;
        } else if ((*shard.args).*word.member != args_.*word.member) {
          add(fmt::format(
              "args.{} is {} in {} and {} in {}: shards of two saves are mixed. Restore one of them.",
              word.attribute, *(args_.*word.member), first->name, *((*shard.args).*word.member),
              shard.name));
          break;
        }
      }
    }
    for (auto const& shard : shards_) {
      if (!shard.args) continue;
      if (!args_.experts) args_.experts = shard.args->experts;
      if (!args_.moe_fc1_rows) args_.moe_fc1_rows = shard.args->moe_fc1_rows;
    }
  }

  void merge_keys() {
    all_keys_ = !shards_.empty();
    for (auto const& shard : shards_) {
      all_keys_ = all_keys_ && (shard.keys.has_value() || !shard.has_model_file);
      if (!shard.keys) continue;
      experts_ = experts_ || shard.keys->experts;
      if (chunks_ == 0) chunks_ = shard.keys->chunks;
      if (shard.keys->chunks != chunks_)
        add(
            fmt::format("{} has {}, and others have {}: shards of two saves are mixed. "
                        "Restore one of them.",
                        shard.name, counted(shard.keys->chunks, "model chunk"), chunks_));
    }
  }

  std::optional<Opinion> user_opinion() const {
    if (user_.ep && *user_.ep > 1)
      return Opinion{SizeSource::user, Second::ep,
                     fmt::format("expert_parallel_size={} given by the user", *user_.ep)};
    if (user_.ep)
      return Opinion{SizeSource::user, Second::pp, "expert_parallel_size=1 given by the user"};
    if (user_.pp && (*user_.pp > 1 || largest_[1] == 0))
      return Opinion{SizeSource::user, Second::pp,
                     fmt::format("pipeline_parallel_size={} given by the user", *user_.pp)};
    if (user_.pp)
      return Opinion{SizeSource::user, Second::ep, "pipeline_parallel_size=1 given by the user"};
    return std::nullopt;
  }

  std::optional<Opinion> args_opinion() const {
    if (args_.ep && *args_.ep > 1)
      return Opinion{SizeSource::args, Second::ep,
                     fmt::format("args.expert_model_parallel_size={}", *args_.ep)};
    if (args_.ep) return Opinion{SizeSource::args, Second::pp, "args.expert_model_parallel_size=1"};
    if (!args_.pp) return std::nullopt;
    bool const stages = *args_.pp > 1 || largest_[1] == 0;
    return Opinion{SizeSource::args, stages ? Second::pp : Second::ep,
                   fmt::format("args.pipeline_model_parallel_size={}", *args_.pp)};
  }

  /// With one stage every shard has embedding and final norm, and dense tensors are equal in all
  /// expert ranks; with several the embedding is in the first only (and the last, when multi-token
  /// prediction keeps a copy there), norm and head in the last.
  std::optional<Opinion> keys_opinion() const {
    if (!all_keys_) return std::nullopt;
    if (!experts_) return Opinion{SizeSource::keys, Second::pp, "no routed expert in any shard"};
    bool all_whole = true;
    bool staged = largest_[1] > 0;
    std::map<int, std::uint64_t> hash_of_tp;
    for (auto const& shard : shards_) {
      if (!shard.keys || fields(shard) != 2) continue;
      auto const& keys = *shard.keys;
      int const second = shard.numbers.numbers[1];
      auto const hash = hash_of_tp.emplace(shard.numbers.numbers[0], keys.dense_hash).first->second;
      bool const tail = keys.final_norm || keys.head;
      all_whole = all_whole && keys.embedding && tail && hash == keys.dense_hash;
      staged = staged &&
               (keys.mtp || (keys.embedding == (second == 0) && tail == (second == largest_[1])));
    }
    if (all_whole && largest_[1] > 0)
      return Opinion{SizeSource::keys, Second::ep,
                     "embedding and final norm in every shard, dense keys alike across field 2"};
    if (staged && !all_whole)
      return Opinion{
          SizeSource::keys, Second::pp,
          "embedding only in the first and head or final norm only in the last of field 2"};
    return std::nullopt;
  }

  void decide_second() {
    std::vector<Opinion> opinions;
    for (auto const& opinion : {user_opinion(), args_opinion(), keys_opinion()})
      if (opinion) opinions.push_back(*opinion);
    if (opinions.empty() && largest_[1] == 0)
      opinions.push_back({SizeSource::names, Second::pp, "the second number is 0 everywhere"});
    if (opinions.empty()) {
      why_ = "undecided";
      return add(fmt::format(
          "the second number of {} can be a pipeline or an expert rank, and neither args nor keys "
          "show which. State the expert or the pipeline size.",
          some_names()));
    }
    second_ = opinions.front().second;
    why_ = opinions.front().why;
    for (auto const& other : opinions) {
      if (other.second == second_) {
        if (other.why != why_) why_ += "; " + other.why;
        continue;
      }
      add(fmt::format(
              "the second number of {} is {} by {} ({}), but {} by {} ({}). Correct the sizes "
              "given, or check whether the directory holds two saves.",
              some_names(), meaning(second_), text(opinions.front().source), opinions.front().why,
              meaning(other.second), text(other.source), other.why),
          opinions.front().source == SizeSource::user);
    }
  }

  struct Sized {
    int value = 1;
    SizeSource source = SizeSource::fallback;
  };

  Sized resolve(std::string_view attribute, std::optional<int> user, std::optional<int> args,
                int by_names) {
    if (user && args && *user != *args)
      add(fmt::format("{} is {} as given by the user, but {} in args. Leave it out, or correct "
                      "it.",
                      attribute, *user, *args),
          true);
    if (user) return {*user, SizeSource::user};
    if (args) return {*args, SizeSource::args};
    return {by_names, SizeSource::names};
  }

  /// One more than the largest number that names pp or ep; 1 when names have no such field.
  int size_by_names(Second of) const {
    if (fields_ >= 3) return largest_[of == Second::pp ? 1 : 2] + 1;
    if (fields_ == 2 && second_ == of) return largest_[1] + 1;
    return 1;
  }

  void resolve_sizes() {
    auto& sizes = result_.sizes;
    auto const take = [](int& size, SizeSource& source, Sized found) {
      size = found.value, source = found.source;
    };
    take(sizes.tp, result_.sources.tp,
         resolve("tensor_model_parallel_size", user_.tp, args_.tp,
                 fields_ > 0 ? largest_[0] + 1 : 1));
    take(sizes.pp, result_.sources.pp,
         resolve("pipeline_model_parallel_size", user_.pp, args_.pp, size_by_names(Second::pp)));
    take(sizes.ep, result_.sources.ep,
         resolve("expert_model_parallel_size", user_.ep, args_.ep, size_by_names(Second::ep)));
    if (args_.vpp && chunks_ > 0 && *args_.vpp != chunks_)
      add(fmt::format(
          "args.virtual_pipeline_model_parallel_size is {}, but the files hold {}. The files are damaged or args were changed.",
          *args_.vpp, counted(chunks_, "model chunk")));
    if (args_.vpp)
      take(sizes.vpp, result_.sources.vpp, {*args_.vpp, SizeSource::args});
    else if (chunks_ > 0)
      take(sizes.vpp, result_.sources.vpp, {chunks_, SizeSource::keys});
    resolve_etp();
    if (!user_.ep && result_.sizes.ep > 1)
      result_.notes.push_back(
          fmt::format("expert_parallel_size was not given: {} was taken from {}", sizes.ep,
                      text(result_.sources.ep)));
  }

  void resolve_etp() {
    auto const shape = size_by_rows();
    auto const found = [&]() -> Sized {
      if (user_.etp) return {*user_.etp, SizeSource::user};
      if (args_.etp) return {*args_.etp, SizeSource::args};
      if (shape) return {*shape, SizeSource::shapes};
      return {result_.sizes.tp, SizeSource::fallback};
    }();
    if (user_.etp && args_.etp && *user_.etp != *args_.etp)
      add(fmt::format(
              "expert_tensor_parallel_size is {} as given by the user, but {} in args. Leave it "
              "out, or correct it.",
              *user_.etp, *args_.etp),
          true);
    result_.sizes.etp = found.value;
    result_.sources.etp = found.source;
  }

  std::optional<Index> rows_found() const {
    for (auto const& shard : shards_)
      if (shard.keys && shard.keys->expert_fc1_rows) return shard.keys->expert_fc1_rows;
    return std::nullopt;
  }

  std::optional<int> size_by_rows() const {
    auto const rows = rows_found();
    if (!rows || !args_.moe_fc1_rows || *rows < 1 || *args_.moe_fc1_rows % *rows != 0)
      return std::nullopt;
    auto const size = *args_.moe_fc1_rows / *rows;
    return size <= largest_shard_number ? std::optional(static_cast<int>(size)) : std::nullopt;
  }

  void check_expert_rows() {
    auto const rows = rows_found();
    if (!rows || !args_.moe_fc1_rows || result_.sources.etp == SizeSource::shapes) return;
    if (*rows * result_.sizes.etp == *args_.moe_fc1_rows) return;
    add(fmt::format(
            "an expert's fc1 has {} rows, but args give {} rows over expert tensor size {} (from {}). State expert_tensor_parallel_size.",
            *rows, *args_.moe_fc1_rows, result_.sizes.etp, text(result_.sources.etp)),
        result_.sources.etp == SizeSource::user);
  }

  void place_shards() {
    for (auto const& shard : shards_) {
      auto const& n = shard.numbers.numbers;
      ShardPlace place = no_place;
      if (n.size() == fields_ && n.size() == 1) place = {n[0], 0, 0};
      if (n.size() == fields_ && n.size() == 2)
        place = second_ == Second::pp ? ShardPlace{n[0], n[1], 0} : ShardPlace{n[0], 0, n[1]};
      if (n.size() == fields_ && n.size() == 3) place = {n[0], n[1], n[2]};
      result_.places.push_back(place);
    }
  }

  bool expert_field() const { return result_.sizes.ep > 1 || fields_ == 3; }
  NameStyle style() const {
    return fields_ == 3 && result_.sizes.pp == 1 ? NameStyle::full3d : NameStyle::megatron;
  }

  void describe() {
    auto const& sizes = result_.sizes;
    result_.loader = expert_field() ? Loader::ep_aware : Loader::non_ep;
    if (!expert_field())
      result_.layout_class = sizes.pp > 1 || fields_ == 2 ? LayoutClass::two_d : LayoutClass::one_d;
    else
      result_.layout_class =
          sizes.pp == 1 && fields_ == 2 ? LayoutClass::three_d_pp_elided : LayoutClass::three_d;
    result_.expected_pattern = shard_name_pattern(sizes, style());
    if (sizes.ep > 1 && sizes.pp == 1)
      result_.expected_pattern += fmt::format(
          " (or {})",
          shard_name_pattern(sizes, fields_ == 3 ? NameStyle::megatron : NameStyle::full3d));
    if (sizes.ep == 1 && fields_ == 3) result_.expected_pattern = "mp_rank_{tp:02}_{pp:03}_{ep:03}";
    if (why_.empty()) why_ = why_of_sizes();
    result_.reason =
        fmt::format("{}; {} numeric field{} per name", why_, fields_, fields_ == 1 ? "" : "s");
  }

  std::string why_of_sizes() const {
    auto const source = result_.sources.ep;
    if (fields_ == 3 && source == SizeSource::names)
      return "three numbers are tensor, pipeline and expert rank";
    if (source == SizeSource::names) return "names have no expert field";
    return fmt::format("expert_model_parallel_size={} from {}", result_.sizes.ep, text(source));
  }

  /// Only EP makes a third coordinate: the sizes determine the number of numbers in a name.
  void check_number_of_fields() {
    auto const& sizes = result_.sizes;
    bool const user = user_.ep.has_value() || user_.pp.has_value();
    if (fields_ == 0 || fields_ > 3) return;
    if (fields_ == 3 && user_.ep == 1)
      return add(
          fmt::format(
              "expert_parallel_size=1 asks for mp_rank_TT or mp_rank_TT_PPP, but {} have three numbers: evidence of expert parallelism. "
              "Pass expert_parallel_size.",
              some_names()),
          true);
    std::size_t const expected = 1U + (sizes.pp > 1 ? 1U : 0U) + (sizes.ep > 1 ? 1U : 0U);
    bool const full = fields_ == 3 && sizes.pp == 1 && sizes.ep > 1;
    bool const zeros =
        fields_ > expected && std::all_of(largest_.begin() + static_cast<std::ptrdiff_t>(expected),
                                          largest_.end(), [](int n) { return n == 0; });
    if (fields_ == expected || full || zeros) return;
    add(fmt::format(
            "pipeline size {} (from {}) and expert size {} (from {}) make names like {}, but found {}. Correct the sizes, or look for the rest "
            "of the checkpoint.",
            sizes.pp, text(result_.sources.pp), sizes.ep, text(result_.sources.ep),
            result_.expected_pattern, some_names()),
        user);
  }

  std::vector<ShardFacts> const& shards_;
  UserSizes user_;
  Classification result_;
  std::size_t fields_ = 0;
  std::vector<int> largest_;  ///< of each field
  ArgsSizes args_;
  bool all_keys_ = false;
  bool experts_ = false;
  int chunks_ = 0;
  Second second_ = Second::pp;
  std::string why_;
};

}  // namespace

std::string_view text(LayoutClass value) {
  static constexpr std::array<std::string_view, 4> words = {"1D", "2D", "3D", "3D (pp elided)"};
  return words[static_cast<std::size_t>(value)];
}

std::string_view text(Loader value) { return value == Loader::non_ep ? "non-EP" : "EP-aware"; }

std::string_view text(SizeSource value) {
  static constexpr std::array<std::string_view, 6> words = {"user",   "args",  "keys",
                                                            "shapes", "names", "default"};
  return words[static_cast<std::size_t>(value)];
}

Classification classify(std::vector<ShardFacts> const& shards, UserSizes const& user) {
  return Classifier(shards, user).classify();
}

void require_readable(Classification const& classification, std::string_view place) {
  if (classification.mismatches.empty()) return;
  std::string sentence;
  bool user_given = false;
  for (auto const& mismatch : classification.mismatches) {
    sentence += (sentence.empty() ? "" : "\n  ") + mismatch.sentence;
    user_given = user_given || mismatch.user_given;
  }
  fail(user_given ? ErrorKind::usage : ErrorKind::source, "{}: {}", place, sentence);
}

}  // namespace reshard::megatron
