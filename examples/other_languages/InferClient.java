// A Java client with stubs that protoc made from the server's .proto files; java.sh builds it.
//
//     java InferClient localhost:8001

import com.google.protobuf.ByteString;
import inference.GRPCInferenceServiceGrpc;
import inference.GrpcService.ModelInferRequest;
import inference.GrpcService.ModelInferResponse;
import inference.GrpcService.ModelStreamInferResponse;
import inference.GrpcService.ServerReadyRequest;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.StreamObserver;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

public final class InferClient {
  public static void main(String[] arguments) throws Exception {
    String address = arguments.length > 0 ? arguments[0] : "localhost:8001";
    ManagedChannel channel = ManagedChannelBuilder.forTarget(address).usePlaintext().build();
    try {
      GRPCInferenceServiceGrpc.GRPCInferenceServiceBlockingStub server =
          GRPCInferenceServiceGrpc.newBlockingStub(channel).withDeadlineAfter(120, TimeUnit.SECONDS);
      System.out.println("ready: "
          + server.serverReady(ServerReadyRequest.getDefaultInstance()).getReady());

      ModelInferResponse answer = server.modelInfer(request("first"));
      System.out.println(answer.getOutputs(0).getName() + " = "
          + Arrays.toString(numbers(answer.getRawOutputContents(0))));

      stream(channel);

      try {
        server.modelInfer(request("wrong").toBuilder().setModelName("nope").build());
      } catch (StatusRuntimeException error) {
        System.out.println("refused: " + error.getStatus().getCode());
      }
    } finally {
      channel.shutdownNow().awaitTermination(5, TimeUnit.SECONDS);
    }
  }

  /** Three requests on one stream; responses arrive while requests are sent. */
  private static void stream(ManagedChannel channel) throws InterruptedException {
    CountDownLatch done = new CountDownLatch(1);
    StreamObserver<ModelInferRequest> requests =
        GRPCInferenceServiceGrpc.newStub(channel).modelStreamInfer(
            new StreamObserver<ModelStreamInferResponse>() {
              @Override
              public void onNext(ModelStreamInferResponse response) {
                System.out.println("streamed: " + response.getInferResponse().getId());
              }

              @Override
              public void onError(Throwable error) {
                System.out.println("the stream failed: " + error.getMessage());
                done.countDown();
              }

              @Override
              public void onCompleted() {
                done.countDown();
              }
            });
    for (String id : new String[] {"one", "two", "three"}) {
      requests.onNext(request(id));
    }
    requests.onCompleted();
    done.await(120, TimeUnit.SECONDS);
  }

  private static ModelInferRequest request(String id) {
    ModelInferRequest.Builder request =
        ModelInferRequest.newBuilder().setModelName("add_sub").setId(id);
    for (String name : new String[] {"INPUT0", "INPUT1"}) {
      ByteBuffer elements = ByteBuffer.allocate(16 * 4).order(ByteOrder.LITTLE_ENDIAN);
      for (int number = 0; number < 16; number++) {
        elements.putInt(number);
      }
      elements.flip();
      request.addInputs(ModelInferRequest.InferInputTensor.newBuilder()
          .setName(name).setDatatype("INT32").addShape(1).addShape(16));
      request.addRawInputContents(ByteString.copyFrom(elements));
    }
    return request.build();
  }

  private static int[] numbers(ByteString raw) {
    int[] found = new int[raw.size() / 4];
    raw.asReadOnlyByteBuffer().order(ByteOrder.LITTLE_ENDIAN).asIntBuffer().get(found);
    return found;
  }
}
