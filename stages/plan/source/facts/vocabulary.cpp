#include "stages/plan/source/facts/vocabulary.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/ranges.h>

#include "core/base/files/file.hpp"
#include "core/base/tables/integers.hpp"
#include "core/base/text/text.hpp"
#include "core/base/text/yaml.hpp"
#include "core/formats/megatron/mcore/vocab_rows.hpp"
#include "core/mapping/maps/config_defaults.hpp"
#include "stages/plan/bridge/run_config.hpp"
#include "stages/plan/config/config_conflicts.hpp"

namespace reshard {
namespace {

/// As Megatron pads.
Index padded(Json const& args, Index vocab, Index ranks) {
  return megatron::padded_rows(vocab, megatron::vocab_multiple(args, ranks));
}

/// The members of a config.json that count the vocabulary otherwise: its own, and those of the
/// language model inside, `inner`.
std::vector<huggingface::ConfigPatch> vocabulary_changes(std::string const& inner,
                                                         Json const& config, Index vocab) {
  std::vector<huggingface::ConfigPatch> result;
  std::set<std::string> const places = {"", "text_config", inner};
  for (std::string const& place : places) {
    std::string const key = place.empty() ? "vocab_size" : place + ".vocab_size";
    Json const stated = fact(config, key);
    if (stated.integer() == nullptr || *stated.integer() == vocab) continue;
    huggingface::ConfigPatch& change = result.emplace_back();
    change.path = words_of(place);
    change.path.emplace_back("vocab_size");
    change.value.emplace(vocab);
  }
  return result;
}

/// The text with another number for vocab_size in its mapping `model`; nothing where it has none in
/// a line of its own.
std::optional<std::string> with_vocabulary(std::string text, Index vocab) {
  constexpr std::string_view key = "vocab_size:";
  bool inside = false;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t const end = std::min(text.find('\n', at), text.size());
    std::string_view const line = std::string_view(text).substr(at, end - at);
    std::size_t const indent = std::min(line.find_first_not_of(' '), line.size());
    if (indent == 0 && !line.empty() && line.front() != '#') inside = line.starts_with("model:");
    if (inside && indent > 0 && line.substr(indent).starts_with(key)) {
      text.replace(at, end - at, fmt::format("{}{} {}", line.substr(0, indent), key, vocab));
      Json const stated = fact(parse_yaml(text, run_config_name), "model.vocab_size");
      return stated == Json(vocab) ? std::optional(std::move(text)) : std::nullopt;
    }
    at = end + 1;
  }
  return std::nullopt;
}

std::optional<Index> vocab_of_args(SourceModel const& read) {
  Json const stated = fact(read.facts.args, "vocab_size");
  if (stated.integer() == nullptr || read.facts.traits.padded_vocab == 0) return std::nullopt;
  // Megatron counts vocab_size before the end-of-document token, which its own null tokenizer
  // then appends.
  Json const tokenizer = fact(read.facts.args, "tokenizer_type");
  bool const null_tokenizer = tokenizer.text() != nullptr && *tokenizer.text() == "NullTokenizer";
  Index const vocab = checked_add(*stated.integer(), Index{null_tokenizer ? 1 : 0},
                                  ErrorKind::source, "vocab_size");
  Json const stated_ranks = fact(read.facts.args, "tensor_model_parallel_size");
  Index const ranks = read.facts.traits.vocab_ranks > 0   ? read.facts.traits.vocab_ranks
                      : stated_ranks.integer() != nullptr ? *stated_ranks.integer()
                                                          : 1;
  // Where args were copied, they state the ranks of an earlier layout; the chunks are of this one.
  for (Index const dealt : {ranks, read.facts.traits.vocab_chunks})
    if (dealt > 0 && padded(read.facts.args, vocab, dealt) == read.facts.traits.padded_vocab)
      return vocab;
  return std::nullopt;
}

}  // namespace

std::optional<Index> recorded_vocab(Checkpoint const& source, SourceModel const& read) {
  Index const own = source.logical.vocab;
  if (own > 0 && own < read.facts.traits.padded_vocab) return own;
  std::optional<Index> const stated = vocab_of_args(read);
  // Args may agree by chance with rows that the job of the record took for vocabulary, all of them.
  return own == 0 || stated == own ? stated : std::nullopt;
}

Index carried_vocab(Checkpoint const& source, PlanRequest const& request, SourceModel const& read) {
  if (source.names == NameOwner::logical)
    return request.read.true_vocab_size > 0
               ? std::min(source.logical.vocab, request.read.true_vocab_size)
               : source.logical.vocab;
  if (request.read.true_vocab_size > 0) {
    Json const stated = fact(read.facts.args, "vocab_size");
    if (stated.integer() != nullptr && request.read.true_vocab_size < *stated.integer())
      fail(ErrorKind::usage,
           "[model] true_vocab_size = {}: the checkpoint's args give vocab_size = {}. Rows would "
           "be lost: correct the key or leave it out.",
           request.read.true_vocab_size, *stated.integer());
    return request.read.true_vocab_size;
  }
  if (!read.facts.recorded_vocab) return read.facts.traits.padded_vocab;
  if (request.read.true_rows) return *read.facts.recorded_vocab;
  Index const ranks = request.target.mesh.size(mesh_axis_of(read.names.maps.core, "vocab"));
  return std::min(read.facts.traits.padded_vocab,
                  padded(read.facts.args, *read.facts.recorded_vocab, ranks));
}

void state_vocabulary(PlanRequest const& request, SourceModel& read) {
  Index const vocab = request.read.true_vocab_size;
  Json const carried = read.model->value("vocab");
  if (vocab == 0 || carried != Json(vocab)) return;
  if (fact(read.facts.args, "vocab_size").integer() != nullptr)
    read.facts.args.set("vocab_size", vocab);
  std::set<std::string> told;
  for (auto* folder : {&read.facts.files, &read.facts.reference}) {
    if (!*folder) continue;
    auto const changes = vocabulary_changes(
        read.names.maps.family ? read.names.maps.family->facts : "", (*folder)->config, vocab);
    if (changes.empty()) continue;
    for (huggingface::ConfigPatch const& change : changes)
      told.insert(fmt::format(
          "{} = {} (was {})", fmt::join(change.path, "."), vocab,
          fact((*folder)->config, fmt::format("{}", fmt::join(change.path, "."))).dump()));
    (*folder)->config_text = huggingface::patched_config_text(std::move((*folder)->config_text),
                                                              changes, config_name_of(**folder));
    (*folder)->config = huggingface::patched_config((*folder)->config, changes);
  }
  if (!told.empty())
    read.warnings.push_back(
        fmt::format("the target's config.json is changed, as model.true_vocab_size says: {}",
                    fmt::join(told, ", ")));
}

void restate_vocabulary(Index vocab, TargetDraft& draft) {
  if (vocab == 0) return;
  auto const restate = [&](std::filesystem::path const& file, std::string text) {
    auto restated = with_vocabulary(std::move(text), vocab);
    if (!restated)
      draft.warnings.push_back(fmt::format(
          "{} is copied as it is: it has no model.vocab_size that model.true_vocab_size "
          "could change",
          file.string()));
    return restated;
  };
  for (TextFile& text : draft.texts)
    if (text.path.filename() == run_config_name)
      if (auto restated = restate(text.path, text.text)) text.text = std::move(*restated);
  for (auto copy = draft.side_copies.begin(); copy != draft.side_copies.end();) {
    bool const settings = copy->from.filename() == run_config_name;
    auto text = settings ? restate(copy->from, read_text_file(copy->from, largest_yaml_bytes))
                         : std::nullopt;
    if (text) draft.texts.push_back({copy->to, std::move(*text), false, {}});
    copy = text ? draft.side_copies.erase(copy) : copy + 1;
  }
}

void check_vocab(Checkpoint const& source, PlanRequest const& request, SourceModel const& read) {
  Json const vocab = read.model->value("vocab");
  if (read.facts.traits.padded_vocab == 0 || vocab.integer() == nullptr ||
      *vocab.integer() <= read.facts.traits.padded_vocab)
    return;
  fail(
      request.read.true_vocab_size > 0 ? ErrorKind::usage : ErrorKind::source,
      "{}: the embedding has {} rows over all ranks, the vocabulary is {}. Check model.true_vocab_size and the tensor-parallel size.",
      source.folder.string(), read.facts.traits.padded_vocab, *vocab.integer());
}

}  // namespace reshard
