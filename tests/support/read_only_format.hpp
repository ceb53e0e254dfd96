#pragma once

#include "core/formats/format.hpp"

namespace reshard::test {

/// What a test's own format needs not say: it is nobody's target, finds no files of a model, and is
/// no folder.
class ReadOnlyFormat : public Format {
 public:
  bool probe(std::filesystem::path const& /*path*/) const override { return false; }
  Checkpoint open(std::filesystem::path const& /*path*/, OpenChoice const& /*choice*/,
                  HeaderExchange const& /*exchange*/) const override {
    refuse();
  }
  Inspection describe(std::filesystem::path const& /*path*/,
                      megatron::UserSizes const& /*sizes*/) const override {
    refuse();
  }
  TargetTraits target() const override { return {}; }
  void lay_out(MappedTarget const& /*job*/, TargetDraft& /*draft*/) const override { refuse(); }
  void lay_out_named(NamedTarget const& /*job*/, TargetDraft& /*draft*/) const override {
    refuse();
  }
  std::optional<huggingface::Folder> model_files(Checkpoint const& /*source*/) const override {
    return std::nullopt;
  }

 private:
  [[noreturn]] static void refuse() {
    fail(ErrorKind::internal, "the test's format is not made for this");
  }
};

}  // namespace reshard::test
