#include "pipeline/verify/suspects/suspect_padding.hpp"

#include <algorithm>

#include "core/base/tables/integers.hpp"
#include "core/plan/equal/digest_work.hpp"
#include "pipeline/verify/suspects/survey_tensors.hpp"

namespace reshard {
namespace {

/// A tensor with rows of padding, one slice for each where the vocabulary is its first axis.
struct PaddedTensor {
  std::string name;
  std::size_t first_slice = 0;
  std::size_t slices = 0;
};

class PaddingLook {
 public:
  PaddingLook(JobPlan& padded, AxisId vocab, Index rows) : padded_(padded), vocab_(vocab) {
    padded.model->mean_only(vocab, rows);
    first_row_ = rows;
  }

  void lay_out() {
    Model& model = *padded_.model;
    target_.tensors.resize(model.tensors().size());
    for (std::size_t t = 0; t < model.tensors().size(); ++t) {
      auto const id = TensorId(t);
      if (!add(id)) model.set_exists(id, false);
    }
  }

  std::vector<SliceValues> survey(Checkpoint const& checkpoint, std::uint64_t memory_bytes,
                                  std::size_t threads, Comm const& comm) const {
    return survey_tensors({checkpoint, padded_, target_, surveyed_, true}, memory_bytes, threads,
                          comm);
  }

  bool empty() const { return tensors_.empty(); }

  PaddingFindings judged(std::vector<SliceValues> const& slices) const {
    PaddingFindings found;
    for (PaddedTensor const& tensor : tensors_) {
      std::vector<std::size_t> filled;
      std::uint64_t values = 0;
      for (std::size_t s = 0; s < tensor.slices; ++s) {
        SliceValues const& is = slices[tensor.first_slice + s];
        if (is.zero == is.elements) continue;
        filled.push_back(s);
        values += is.elements - is.zero;
      }
      if (filled.empty()) continue;
      if (filled.size() == tensor.slices) {
        found.notes.push_back(fmt::format(
            "'{}': all rows behind the vocabulary of {} have values. Megatron trains the rows that it "
            "pads with; if it did not train this model, compare the vocabulary with the tokenizer.",
            tensor.name, first_row_));
        continue;
      }
      found.suspects.push_back(
          {SuspectKind::padding, tensor.name,
           fmt::format("{} of {} rows behind the vocabulary of {} are not zero, the first is {}",
                       filled.size(), tensor.slices, first_row_,
                       first_row_ + static_cast<Index>(filled[0])),
           values});
    }
    return found;
  }

 private:
  bool add(TensorId id) {
    Model const& model = *padded_.model;
    LogicalTensor const& logical = model.tensor(id);
    TensorPieces const& stored = padded_.source.tensors[index(id)];
    if (!model.exists(id) || logical.slot != SlotId::weight || stored.empty()) return false;
    std::vector<Piece> const pieces = padding_pieces(model, id);
    DType const dtype = padded_.source.blobs[stored.blob(0)].dtype;
    if (pieces.empty() || bits(dtype) % 8 != 0) return false;
    std::vector<DomainAxis> const meant = model.meant_domain(logical);
    std::vector<DomainAxis> const all = model.domain(logical);
    std::uint64_t bytes = static_cast<std::uint64_t>(bits(dtype)) / 8;
    std::uint64_t rows = 0;
    for (std::size_t d = 0; d < all.size(); ++d) {
      Index const in_all = extent(all[d].runs);
      bool const is_vocab = all[d].axis == vocab_;
      if (is_vocab) rows = narrow<std::uint64_t>(in_all - extent(meant[d].runs));
      if (!is_vocab) bytes *= narrow<std::uint64_t>(in_all);
    }
    if (rows == 0 || bytes == 0) return false;
    bool const by_row = all.front().axis == vocab_;
    std::size_t const slices = by_row ? rows : 1;
    auto const file = narrow<std::uint32_t>(surveyed_.size());
    tensors_.push_back({logical.name, slices_, slices});
    surveyed_.push_back({dtype, by_row ? bytes : bytes * rows, slices});
    slices_ += slices;
    target_.files.push_back(logical.name);
    target_.add({file, 0, dtype, logical.name}, pieces, false);
    return true;
  }

  JobPlan& padded_;
  AxisId vocab_;
  Index first_row_ = 0;
  Catalog target_;
  std::vector<PaddedTensor> tensors_;
  std::vector<SurveyedTensor> surveyed_;
  std::size_t slices_ = 0;
};

}  // namespace

PaddingFindings look_at_padding(Checkpoint const& checkpoint, JobPlan const& catalogue,
                                DigestQuery query, std::uint64_t memory_bytes, std::size_t threads,
                                Comm const& comm) {
  int const vocab = catalogue.model->axes().find("vocab");
  if (vocab < 0) return {};
  Index const rows = catalogue.model->axes()[static_cast<AxisId>(vocab)].size;
  if (catalogue.listing.padded_vocab <= rows) return {};
  query.vocab = catalogue.listing.padded_vocab;
  JobPlan padded = open_logical(checkpoint, query, comm);
  int const axis = padded.model->axes().find("vocab");
  if (axis < 0) return {};
  PaddingLook look(padded, static_cast<AxisId>(axis), rows);
  together(comm, [&] { look.lay_out(); });
  if (look.empty()) return {};
  return look.judged(look.survey(checkpoint, memory_bytes, threads, comm));
}

}  // namespace reshard
