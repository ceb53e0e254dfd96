#include "stages/verify/master_check.hpp"

#include <cstring>

#include <fmt/ranges.h>

#include "core/base/text/json.hpp"
#include "core/plan/equal/replicas.hpp"
#include "core/quant/rounded.hpp"
#include "stages/verify/paired_elements.hpp"
#include "stages/verify/surveys/compare_stats.hpp"

namespace reshard {
namespace {

constexpr std::uint64_t master_bytes = 4;

std::uint32_t number_at(std::byte const* from, std::uint64_t bytes) {
  std::uint32_t value = 0;
  std::memcpy(&value, from, bytes);
  return value;
}

class Comparer {
 public:
  Comparer(Model const& model, Catalog const& source, StateCheck const& check,
           CatalogReader const& read)
      : model_(model),
        source_(source),
        check_(check),
        read_(read),
        masters_(distinct_pieces(source.tensors[index(check.state)], source)),
        weights_(distinct_pieces(source.tensors[index(check.weight)], source)),
        weight_bytes_(static_cast<std::uint64_t>(bits(check.weight_dtype)) / 8) {}

  MasterFindings run() {
    std::vector<Piece> masters = masters_.made();
    for (Piece& piece : masters) piece.tensor = check_.weight;
    std::vector<Piece> const weights = weights_.made();
    std::vector<std::uint32_t> const master_blobs = masters_.blobs();
    std::vector<std::uint32_t> const weight_blobs = weights_.blobs();
    PairedElements pairs(model_, source_, check_.weight, {masters, master_blobs, master_bytes},
                         {weights, weight_blobs, weight_bytes_}, read_);
    pairs.each([&](std::byte const* master, std::byte const* weight) {
      look(number_at(master, master_bytes), number_at(weight, weight_bytes_), pairs);
    });
    if (findings_.differing > 0) findings_.first = first_text();
    return std::move(findings_);
  }

 private:
  void look(std::uint32_t master, std::uint32_t weight, PairedElements const& pairs) {
    ++findings_.elements;
    std::uint32_t const rounded = check_.weight_dtype == DType::f32    ? master
                                  : check_.weight_dtype == DType::bf16 ? quant::bf16_of(master)
                                                                       : quant::f16_of(master);
    if (rounded == weight) return;
    ++findings_.differing;
    std::vector<Index> at = pairs.place();
    if (findings_.differing > 1 && !(at < findings_.place)) return;
    findings_.place = std::move(at);
    first_master_ = master;
    first_weight_ = weight;
    first_blobs_ = pairs.blobs();
  }

  std::string first_text() const {
    auto const where = [&](std::uint32_t blob) {
      Blob const& one = source_.blobs[blob];
      return fmt::format("{} of {}", json_quoted(one.name), source_.files[one.file]);
    };
    return fmt::format("{}: master {} in {}, weight {} in {}",
                       place_text(model_, check_.weight, findings_.place),
                       value_text(DType::f32, std::as_bytes(std::span(&first_master_, 1))),
                       where(first_blobs_.first),
                       value_text(check_.weight_dtype,
                                  std::as_bytes(std::span(&first_weight_, 1)).first(weight_bytes_)),
                       where(first_blobs_.second));
  }

  Model const& model_;
  Catalog const& source_;
  StateCheck const& check_;
  CatalogReader const& read_;
  Distinct masters_;
  Distinct weights_;
  std::uint64_t weight_bytes_;
  MasterFindings findings_;
  std::uint32_t first_master_ = 0;
  std::uint32_t first_weight_ = 0;
  std::pair<std::uint32_t, std::uint32_t> first_blobs_;
};

}  // namespace

MasterFindings compare_masters(Model const& model, Catalog const& source, StateCheck const& check,
                               CatalogReader const& read) {
  return Comparer(model, source, check, read).run();
}

}  // namespace reshard
