// Masters are compared with their weights element by element, also where both lie in another order.

#include "stages/verify/master_check.hpp"

#include <cstring>

#include <gtest/gtest.h>

#include "core/quant/rounded.hpp"

namespace reshard {
namespace {

constexpr Index rows = 700;  // more than one window of a file
constexpr Index columns = 512;

struct Sample {
  Model model = Model(std::vector<PlainTensor>{{"w", {rows, columns}}}, "here");
  Catalog catalog;
  std::vector<float> masters = std::vector<float>(rows * columns + 3);
  std::vector<std::uint16_t> weights = std::vector<std::uint16_t>(rows * columns);

  /// Weights are stored with their dimensions swapped, masters behind three other numbers.
  Sample() {
    std::vector<std::string> const slots{"param"};
    model.add_slots(slots);
    model.set_exists(model.in_slot(TensorId{0}, SlotId{1}), true);
    catalog.files = {"masters", "weights"};
    catalog.tensors.resize(2);
    auto const axis = [&](std::size_t d) { return model.tensors()[0].axes[d].axis; };
    catalog.add({1, 0, DType::bf16, "weight"},
                {{TensorId{0},
                  {{axis(0), rows, 1, 0, rows, 1}, {axis(1), columns, 1, 0, columns, rows}},
                  {},
                  0}},
                false);
    catalog.add({0, 12, DType::f32, "master"},
                {{model.in_slot(TensorId{0}, SlotId{1}),
                  {{axis(0), rows, 1, 0, rows, columns}, {axis(1), columns, 1, 0, columns, 1}},
                  {},
                  0}},
                false);
    for (Index r = 0; r < rows; ++r)
      for (Index c = 0; c < columns; ++c) {
        auto const value = static_cast<float>(r * columns + c) * 0.017F;
        std::uint32_t bits = 0;
        std::memcpy(&bits, &value, sizeof bits);
        masters[static_cast<std::size_t>(3 + r * columns + c)] = value;
        weights[static_cast<std::size_t>(c * rows + r)] = quant::bf16_of(bits);
      }
  }

  MasterFindings compare() const {
    auto const checks = state_checks(model, catalog, DigestId{2});
    return compare_masters(
        model, catalog, checks.front(),
        [&](std::uint32_t file, std::uint64_t offset, std::span<std::byte> into) {
          auto const bytes =
              file == 0 ? std::as_bytes(std::span(masters)) : std::as_bytes(std::span(weights));
          ASSERT_LE(offset + into.size(), bytes.size());
          std::memcpy(into.data(), bytes.data() + offset, into.size());
        });
  }
};

TEST(MasterCheck, FindsNothingWhereAllRoundToTheirWeights) {
  MasterFindings const found = Sample().compare();
  EXPECT_EQ(found.elements, static_cast<std::uint64_t>(rows * columns));
  EXPECT_EQ(found.differing, 0U);
  EXPECT_EQ(found.first, "");
}

TEST(MasterCheck, CountsAndNamesTheFirst) {
  Sample sample;
  sample.weights[static_cast<std::size_t>(5 * rows + 600)] ^= 1U;
  sample.weights[static_cast<std::size_t>(9 * rows + 2)] ^= 1U;
  MasterFindings const found = sample.compare();
  EXPECT_EQ(found.differing, 2U);
  EXPECT_NE(found.first.find("[2, "), std::string::npos) << found.first;
  EXPECT_NE(found.first.find(", 9]: master "), std::string::npos) << found.first;
  EXPECT_NE(found.first.find("\"master\" of masters"), std::string::npos) << found.first;
  EXPECT_NE(found.first.find("\"weight\" of weights"), std::string::npos) << found.first;
}

}  // namespace
}  // namespace reshard
