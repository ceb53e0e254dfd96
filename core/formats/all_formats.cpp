#include "core/formats/dcp/source.hpp"
#include "core/formats/deepspeed/source.hpp"
#include "core/formats/format.hpp"
#include "core/formats/fsdp_ranks/source.hpp"
#include "core/formats/hdf5/source.hpp"
#include "core/formats/huggingface/source.hpp"
#include "core/formats/megatron/source.hpp"
#include "core/formats/mistral/source.hpp"
#include "core/formats/torch_dist/formats.hpp"

namespace reshard {
namespace {

struct DcpFormats {
  dcp::DcpFormat plain;
  dcp::TorchDistFormat torch_dist;
  dcp::FsdpDtensorFormat fsdp_dtensor;
  dcp::TorchDcpFormat torch_dcp;
};

DcpFormats const& dcp_formats() {
  static DcpFormats const formats;
  return formats;
}

}  // namespace

dcp::DcpFormat const& dcp::format_of(Flavour flavour) {
  switch (flavour) {
    case Flavour::plain: break;
    case Flavour::torch_dist: return dcp_formats().torch_dist;
    case Flavour::fsdp_dtensor: return dcp_formats().fsdp_dtensor;
    case Flavour::torch_dcp: return dcp_formats().torch_dcp;
  }
  return dcp_formats().plain;
}

std::span<Format const* const> all_formats() {
  static megatron::MegatronFormat const megatron;
  static huggingface::HuggingFaceFormat const huggingface;
  static mistral::MistralFormat const mistral;
  static hdf5::Hdf5Format const hdf5;
  static deepspeed::DeepSpeedFormat const deepspeed;
  static fsdp_ranks::FsdpRanksFormat const fsdp_ranks;
  static Format const* const formats[] = {&megatron,
                                          &huggingface,
                                          &mistral,
                                          &dcp_formats().torch_dist,
                                          &dcp_formats().fsdp_dtensor,
                                          &dcp_formats().plain,
                                          &hdf5,
                                          &deepspeed,
                                          &fsdp_ranks};
  return formats;
}

}  // namespace reshard
