#include "stages/plan/source/vocabulary.hpp"

#include <algorithm>

#include "core/base/integers.hpp"
#include "core/formats/megatron/vocab_rows.hpp"
#include "core/mapping/config_defaults.hpp"

namespace reshard {
namespace {

/// As Megatron pads.
Index padded(Json const& args, Index vocab, Index ranks) {
  return megatron::padded_rows(vocab, megatron::vocab_multiple(args, ranks));
}

}  // namespace

std::optional<Index> recorded_vocab(SourceModel const& read) {
  Json const stated = fact(read.args, "vocab_size");
  if (stated.integer() == nullptr || read.traits.padded_vocab == 0) return std::nullopt;
  // Megatron counts vocab_size before the end-of-document token, which its own null tokenizer
  // then appends.
  Json const tokenizer = fact(read.args, "tokenizer_type");
  bool const null_tokenizer = tokenizer.text() != nullptr && *tokenizer.text() == "NullTokenizer";
  Index const vocab = checked_add(*stated.integer(), Index{null_tokenizer ? 1 : 0},
                                  ErrorKind::source, "vocab_size");
  Json const stated_ranks = fact(read.args, "tensor_model_parallel_size");
  Index const ranks = read.traits.vocab_ranks > 0         ? read.traits.vocab_ranks
                      : stated_ranks.integer() != nullptr ? *stated_ranks.integer()
                                                          : 1;
  // Where args were copied, they state the ranks of an earlier layout; the chunks are of this one.
  for (Index const dealt : {ranks, read.traits.vocab_chunks})
    if (dealt > 0 && padded(read.args, vocab, dealt) == read.traits.padded_vocab) return vocab;
  return std::nullopt;
}

Index carried_vocab(Checkpoint const& source, TargetRequest const& request,
                    SourceModel const& read) {
  if (source.names == NameOwner::logical) return source.vocab;
  if (request.true_vocab_size > 0) {
    Json const stated = fact(read.args, "vocab_size");
    if (stated.integer() != nullptr && request.true_vocab_size < *stated.integer())
      fail(ErrorKind::usage,
           "[model] true_vocab_size = {}: the checkpoint's args give vocab_size = {}. Rows would "
           "be lost: correct the key or leave it out.",
           request.true_vocab_size, *stated.integer());
    return request.true_vocab_size;
  }
  if (!read.recorded_vocab) return read.traits.padded_vocab;
  if (request.true_rows) return *read.recorded_vocab;
  Index const ranks = request.mesh.size(mesh_axis_of(read.maps.core, "vocab"));
  return std::min(read.traits.padded_vocab, padded(read.args, *read.recorded_vocab, ranks));
}

void check_vocab(Checkpoint const& source, TargetRequest const& request, SourceModel const& read) {
  Json const vocab = read.model->value("vocab");
  if (read.traits.padded_vocab == 0 || vocab.integer() == nullptr ||
      *vocab.integer() <= read.traits.padded_vocab)
    return;
  fail(
      request.true_vocab_size > 0 ? ErrorKind::usage : ErrorKind::source,
      "{}: the embedding has {} rows over all ranks, the vocabulary is {}. Check model.true_vocab_size and the tensor-parallel size.",
      source.folder.string(), read.traits.padded_vocab, *vocab.integer());
}

}  // namespace reshard
